/* A sequence from its first check to its last mark, where nothing is out of the ordinary. */
#include "native.h"

typedef struct {
    PyObject_HEAD
    uint64_t context, event;
    char is_open;
    Claim *claim;
    Call *get_context, *is_capturing, *wait_event, *record_event;
} Round;

static PyObject *Round_run(Round *self, PyObject *args)
{
    Sequence *sequence;
    PyObject *stream_object, *owner, *thread, *owners, *streams, *result = NULL;
    if (!PyArg_ParseTuple(args, "O!OO!O!O!O!", &SequenceType, &sequence, &stream_object, &_PyWeakref_RefType, &owner,
                          &_PyWeakref_RefType, &thread, &PyList_Type, &owners, &PyList_Type, &streams))
        return NULL;
    uint64_t stream, context = 0, status = 0;
    if (!as_word(stream_object, &stream))
        return NULL;
    if (ENTER(self->get_context, ADDRESS_OF(context)) != 0 || context != self->context
        || ENTER(self->is_capturing, stream, ADDRESS_OF(status)) != 0 || status != 0
        || !claim_take(self->claim, owner, thread))
        Py_RETURN_FALSE;
    if (!self->is_open || !self->claim->is_open) {
        Py_CLEAR(self->claim->owner);
        Py_RETURN_FALSE;
    }
    sequence->at = -1;
    int code = ENTER(self->wait_event, stream, self->event);
    if (code != 0)
        raise_code(self->wait_event->error, code);
    else {
        Py_ssize_t before = PyList_GET_SIZE(owners), streams_before = PyList_GET_SIZE(streams);
        if (PyList_Append(owners, owner) == 0 && PyList_Append(streams, stream_object) == 0)
            result = Sequence_run(sequence, stream_object);
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        PyList_SetSlice(streams, streams_before, PY_SSIZE_T_MAX, NULL); /* and what a step has left there */
        PyList_SetSlice(owners, before, PY_SSIZE_T_MAX, NULL);
        /* Marked also where a step has failed, whose error is the one to tell. */
        code = ENTER(self->record_event, self->event, stream);
        if (result == NULL)
            PyErr_Restore(type, value, traceback);
        else if (code != 0) {
            Py_CLEAR(result);
            raise_code(self->record_event->error, code);
        }
    }
    Py_CLEAR(self->claim->owner);
    if (result == NULL)
        return NULL;
    Py_DECREF(result);
    Py_RETURN_TRUE;
}

static PyObject *Round_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    unsigned long long context, event;
    PyObject *claim, *get_context, *is_capturing, *wait_event, *record_event;
    if (!PyArg_ParseTuple(args, "KKO!O!O!O!O!", &context, &event, &ClaimType, &claim, &CallType, &get_context,
                          &CallType, &is_capturing, &CallType, &wait_event, &CallType, &record_event))
        return NULL;
    Round *self = (Round *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->context = context;
    self->event = event;
    self->is_open = 1;
    self->claim = (Claim *)Py_NewRef(claim);
    self->get_context = (Call *)Py_NewRef(get_context);
    self->is_capturing = (Call *)Py_NewRef(is_capturing);
    self->wait_event = (Call *)Py_NewRef(wait_event);
    self->record_event = (Call *)Py_NewRef(record_event);
    return (PyObject *)self;
}

static int Round_traverse(Round *self, visitproc visit, void *arg)
{
    Py_VISIT(self->claim);
    Py_VISIT(self->get_context);
    Py_VISIT(self->is_capturing);
    Py_VISIT(self->wait_event);
    Py_VISIT(self->record_event);
    return 0;
}

/* No tp_clear: what it refers to cannot refer back to it. */
static void Round_dealloc(Round *self)
{
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->claim);
    Py_XDECREF(self->get_context);
    Py_XDECREF(self->is_capturing);
    Py_XDECREF(self->wait_event);
    Py_XDECREF(self->record_event);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef Round_methods[] = {
    {"run", (PyCFunction)Round_run, METH_VARARGS, "See breakgraph.driver.portable.Round.run."},
    {NULL},
};

static PyMemberDef Round_members[] = {
    {"is_open", T_BOOL, offsetof(Round, is_open), 0, "See breakgraph.driver.portable.Round."},
    {NULL},
};

PyTypeObject RoundType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "breakgraph.driver._native.Round",
    .tp_doc = "See breakgraph.driver.portable.Round.",
    .tp_basicsize = sizeof(Round),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = Round_new,
    .tp_methods = Round_methods,
    .tp_members = Round_members,
    .tp_traverse = (traverseproc)Round_traverse,
    .tp_dealloc = (destructor)Round_dealloc,
};
