/* A sequence from its first check to its last mark, where nothing is out of the ordinary. */
#include "native.h"

/* Make a call for the round: whether it went well. */
static int enters(Call *call, uint64_t first, uint64_t second)
{
    int code = ENTER(call, first, second);
    if (code != 0)
        raise_code(call->error, code);
    return code == 0;
}

/* Whether the last use of what the claim is for is over; -1 where it cannot be told. */
static int is_over(Round *self)
{
    uint64_t mode = self->relaxed; /* in which a question does no harm to a capture that is open elsewhere */
    if (!enters(self->exchange_mode, ADDRESS_OF(mode), 0))
        return -1;
    int code = ENTER(self->query_event, self->event);
    uint64_t back = mode, again = mode; /* once more: a thread left relaxed would harm later captures */
    if (ENTER(self->exchange_mode, ADDRESS_OF(back)) != 0 && !enters(self->exchange_mode, ADDRESS_OF(again), 0))
        return -1;
    if (code != 0 && code != self->query_event->unready) {
        raise_code(self->query_event->error, code);
        return -1;
    }
    return code == 0;
}

/* Where there may not be room for the whole sequence: if nothing that was counted is in the queue any more, forget it. */
static int forget_what_is_over(Round *self, Sequence *sequence)
{
    Tally *tally = self->tally;
    if (sequence->entries == 0 || tally->entries + sequence->entries <= tally->most)
        return 1;
    int over = is_over(self);
    if (over > 0)
        tally->entries = 0;
    return over >= 0;
}

/* Run `sequence` on a stream for `owner`: 1, or 0 where it is not to be run, or -1 with an exception. */
int round_run(Round *self, Sequence *sequence, PyObject *stream_object, PyObject *owner, PyObject *thread,
              PyObject *owners, PyObject *streams)
{
    uint64_t stream, context = 0, status = 0;
    if (!as_word(stream_object, &stream))
        return -1;
    if (ENTER(self->get_context, ADDRESS_OF(context)) != 0 || context != self->context
        || ENTER(self->is_capturing, stream, ADDRESS_OF(status)) != 0 || status != 0
        || !claim_take(self->claim, owner, thread))
        return 0;
    if (!self->is_open || !self->claim->is_open) {
        Py_CLEAR(self->claim->owner);
        return 0;
    }
    PyObject *result = NULL;
    sequence->at = -1;
    if (forget_what_is_over(self, sequence) && enters(self->wait_event, stream, self->event)) {
        Py_ssize_t before = PyList_GET_SIZE(owners), streams_before = PyList_GET_SIZE(streams);
        if (PyList_Append(owners, owner) == 0 && PyList_Append(streams, stream_object) == 0)
            result = Sequence_run(sequence, stream_object);
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        PyList_SetSlice(streams, streams_before, PY_SSIZE_T_MAX, NULL); /* and what a step has left there */
        PyList_SetSlice(owners, before, PY_SSIZE_T_MAX, NULL);
        /* Marked also where a step has failed, whose error is the one to tell. */
        int code = ENTER(self->record_event, self->event, stream);
        if (result == NULL)
            PyErr_Restore(type, value, traceback);
        else if (code != 0) {
            Py_CLEAR(result);
            raise_code(self->record_event->error, code);
        }
    }
    Py_CLEAR(self->claim->owner);
    Py_XDECREF(result);
    return result != NULL ? 1 : -1;
}

static PyObject *Round_run(Round *self, PyObject *args)
{
    PyObject *sequence, *stream, *owner, *thread, *owners, *streams;
    if (!PyArg_ParseTuple(args, "O!OO!O!O!O!", &SequenceType, &sequence, &stream, &_PyWeakref_RefType, &owner,
                          &_PyWeakref_RefType, &thread, &PyList_Type, &owners, &PyList_Type, &streams))
        return NULL;
    int done = round_run(self, (Sequence *)sequence, stream, owner, thread, owners, streams);
    return done < 0 ? NULL : PyBool_FromLong(done);
}

static PyObject *Round_usual(PyObject *self, PyObject *args, PyObject *kwargs)
{
    PyObject *asked = kwargs ? PyDict_Copy(kwargs) : PyDict_New(), *made = NULL;
    if (asked != NULL && PyDict_SetItemString(asked, "round", self) == 0)
        made = PyObject_Call((PyObject *)&UsualType, args, asked);
    Py_XDECREF(asked);
    return made;
}

static PyObject *Round_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"context", "event", "claim", "tally", "get_context", "is_capturing", "wait_event",
                            "record_event", "query_event", "exchange_mode", "relaxed", NULL};
    unsigned long long context, event, relaxed;
    PyObject *claim, *tally, *get_context, *is_capturing, *wait_event, *record_event, *query_event, *exchange_mode;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "KKO!O!O!O!O!O!O!O!K", names, &context, &event, &ClaimType, &claim,
                                     &TallyType, &tally, &CallType, &get_context, &CallType, &is_capturing, &CallType,
                                     &wait_event, &CallType, &record_event, &CallType, &query_event, &CallType,
                                     &exchange_mode, &relaxed))
        return NULL;
    Round *self = (Round *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->context = context;
    self->event = event;
    self->is_open = 1;
    self->relaxed = relaxed;
    self->claim = (Claim *)Py_NewRef(claim);
    self->tally = (Tally *)Py_NewRef(tally);
    self->get_context = (Call *)Py_NewRef(get_context);
    self->is_capturing = (Call *)Py_NewRef(is_capturing);
    self->wait_event = (Call *)Py_NewRef(wait_event);
    self->record_event = (Call *)Py_NewRef(record_event);
    self->query_event = (Call *)Py_NewRef(query_event);
    self->exchange_mode = (Call *)Py_NewRef(exchange_mode);
    return (PyObject *)self;
}

static int Round_traverse(Round *self, visitproc visit, void *arg)
{
    Py_VISIT(self->claim);
    Py_VISIT(self->get_context);
    Py_VISIT(self->is_capturing);
    Py_VISIT(self->wait_event);
    Py_VISIT(self->record_event);
    Py_VISIT(self->query_event);
    Py_VISIT(self->exchange_mode);
    return 0;
}

/* No tp_clear: what it refers to cannot refer back to it. */
static void Round_dealloc(Round *self)
{
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->claim);
    Py_XDECREF(self->tally);
    Py_XDECREF(self->get_context);
    Py_XDECREF(self->is_capturing);
    Py_XDECREF(self->wait_event);
    Py_XDECREF(self->record_event);
    Py_XDECREF(self->query_event);
    Py_XDECREF(self->exchange_mode);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef Round_methods[] = {
    {"run", (PyCFunction)Round_run, METH_VARARGS, "See breakgraph.driver.portable.Round.run."},
    {"usual", (PyCFunction)(void (*)(void))Round_usual, METH_VARARGS | METH_KEYWORDS,
     "See breakgraph.driver.portable.Round.usual."},
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
