/* Launches, and Python calls between them. */
#include "native.h"

PyObject *stream_name;

PyObject *Sequence_run(Sequence *self, PyObject *stream_object)
{
    uint64_t stream;
    self->at = -1;
    if (!as_word(stream_object, &stream) || PyObject_SetAttr(self->place, stream_name, stream_object))
        return NULL;
    int (*launch)(uint64_t, uint64_t) = (int (*)(uint64_t, uint64_t))(void *)self->launch->entry;
    for (Py_ssize_t at = 0; at < self->count; at++) {
        Pair *pair = &self->pairs[at];
        if (pair->exec != 0) {
            int code = launch(pair->exec, stream);
            if (code != 0) {
                self->at = 2 * at;
                return raise_code(self->launch->error, code);
            }
        }
        if (pair->call != NULL) {
            PyObject *result = pair->vectorcall != NULL ? pair->vectorcall(pair->call, NULL, 0, NULL)
                                                        : PyObject_CallNoArgs(pair->call);
            if (result == NULL) {
                self->at = 2 * at + 1;
                return NULL;
            }
            Py_DECREF(result);
        }
    }
    Py_RETURN_NONE;
}

static PyObject *Sequence_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"launch", "pairs", "place", NULL};
    PyObject *launch, *given, *place;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OO", names, &CallType, &launch, &given, &place))
        return NULL;
    PyObject *pairs = PySequence_Tuple(given);
    if (pairs == NULL)
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(pairs);
    Sequence *self = (Sequence *)type->tp_alloc(type, 0);
    if (self == NULL)
        goto failed;
    self->launch = (Call *)Py_NewRef(launch);
    self->place = Py_NewRef(place);
    self->at = -1;
    self->pairs = PyMem_Calloc(count ? count : 1, sizeof(Pair));
    if (self->pairs == NULL) {
        PyErr_NoMemory();
        goto failed;
    }
    for (; self->count < count; self->count++) {
        PyObject *pair = PyTuple_GET_ITEM(pairs, self->count), *graph_exec, *call;
        if (!PyTuple_Check(pair)) {
            PyErr_SetString(PyExc_TypeError, "a pair is a tuple of an exec and a callable or None");
            goto failed;
        }
        if (!PyArg_ParseTuple(pair, "OO", &graph_exec, &call) || !as_word(graph_exec, &self->pairs[self->count].exec))
            goto failed;
        if (call != Py_None) {
            self->pairs[self->count].call = Py_NewRef(call);
            self->pairs[self->count].vectorcall = PyVectorcall_Function(call);
        }
    }
    Py_DECREF(pairs);
    return (PyObject *)self;
failed:
    Py_DECREF(pairs);
    Py_XDECREF(self);
    return NULL;
}

static int Sequence_traverse(Sequence *self, visitproc visit, void *arg)
{
    Py_VISIT(self->launch);
    Py_VISIT(self->place);
    for (Py_ssize_t at = 0; at < self->count; at++)
        Py_VISIT(self->pairs[at].call);
    return 0;
}

/* Not while it runs: whoever runs it holds a reference, so neither the collector nor a destructor gets here. */
static int Sequence_clear(Sequence *self)
{
    while (self->count > 0) {
        self->count--;
        Py_CLEAR(self->pairs[self->count].call); /* a macro: it reads its argument twice */
    }
    return 0;
}

static void Sequence_dealloc(Sequence *self)
{
    PyObject_GC_UnTrack(self);
    Sequence_clear(self);
    Py_CLEAR(self->launch);
    Py_CLEAR(self->place);
    PyMem_Free(self->pairs);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef Sequence_methods[] = {
    {"run", (PyCFunction)Sequence_run, METH_O, "See breakgraph.driver.portable.Sequence.run."},
    {NULL},
};

static PyMemberDef Sequence_members[] = {
    {"entries", T_LONGLONG, offsetof(Sequence, entries), 0, "See breakgraph.driver.portable.Sequence."},
    {"at", T_PYSSIZET, offsetof(Sequence, at), READONLY, "See breakgraph.driver.portable.Sequence."},
    {NULL},
};

PyTypeObject SequenceType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "breakgraph.driver._native.Sequence",
    .tp_doc = "See breakgraph.driver.portable.Sequence.",
    .tp_basicsize = sizeof(Sequence),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = Sequence_new,
    .tp_methods = Sequence_methods,
    .tp_members = Sequence_members,
    .tp_traverse = (traverseproc)Sequence_traverse,
    .tp_clear = (inquiry)Sequence_clear,
    .tp_dealloc = (destructor)Sequence_dealloc,
};
