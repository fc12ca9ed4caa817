/* What replay does thousands of times a second: driver calls that keep the interpreter lock, a loop of launches and
 * Python calls, the claim and the marks around it, and a function's detour. portable.py has the same in Python;
 * quick.py chooses.
 *
 * Nothing here knows CUDA. A driver call is an address that takes up to four machine words and answers an int, which
 * is how the calling conventions of x86-64 and of AArch64 pass handles, sizes and small integers alike.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <structmember.h>

#define MOST_WORDS 4

typedef int (*Entry)(uint64_t, uint64_t, uint64_t, uint64_t);

/* --- Call: one driver call --------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Entry entry;
    PyObject *error; /* from a result code that is not 0 to the exception to raise */
    Py_ssize_t words; /* that the caller gives */
    int answers;      /* the call writes a number to an address after those */
    int unready;      /* the result code that means "not yet", or 0 */
} Call;

static PyObject *raise_code(PyObject *error, int code)
{
    PyObject *raised = PyObject_CallFunction(error, "i", code);
    if (raised != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(raised), raised);
        Py_DECREF(raised);
    }
    return NULL;
}

/* What has an index as a word, which is its lowest 64 bits, as ctypes has it. */
static int as_word(PyObject *given, uint64_t *word)
{
    *word = PyLong_AsUnsignedLongLongMask(given);
    return *word != (uint64_t)-1 || !PyErr_Occurred();
}

static PyObject *Call_vectorcall(PyObject *callable, PyObject *const *args, size_t flags, PyObject *names)
{
    Call *self = (Call *)callable;
    Py_ssize_t given = PyVectorcall_NARGS(flags);
    uint64_t words[MOST_WORDS + 1] = {0}, answer = 0;
    if (given != self->words || (names != NULL && PyTuple_GET_SIZE(names))) {
        PyErr_Format(PyExc_TypeError, "takes %zd positional arguments", self->words);
        return NULL;
    }
    for (Py_ssize_t at = 0; at < given; at++)
        if (!as_word(args[at], &words[at]))
            return NULL;
    if (self->answers)
        words[given] = (uint64_t)(uintptr_t)&answer;
    int code = self->entry(words[0], words[1], words[2], words[3]);
    if (self->unready) {
        if (code == 0 || code == self->unready)
            return PyBool_FromLong(code == 0);
    }
    if (code != 0)
        return raise_code(self->error, code);
    if (self->answers)
        return PyLong_FromUnsignedLongLong(answer);
    Py_RETURN_NONE;
}

static PyObject *Call_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"address", "words", "error", "answers", "unready", NULL};
    unsigned long long address;
    Py_ssize_t words;
    PyObject *error;
    int answers = 0, unready = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "KnO|pi", names, &address, &words, &error, &answers, &unready))
        return NULL;
    if (address == 0 || words < 0 || words + answers > MOST_WORDS) {
        PyErr_SetString(PyExc_ValueError, "a call has an address, and takes up to four words with its answer");
        return NULL;
    }
    Call *self = (Call *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->vectorcall = Call_vectorcall;
    self->entry = (Entry)(uintptr_t)address;
    self->words = words;
    self->answers = answers;
    self->unready = unready;
    self->error = Py_NewRef(error);
    return (PyObject *)self;
}

static int Call_traverse(Call *self, visitproc visit, void *arg)
{
    Py_VISIT(self->error);
    return 0;
}

static int Call_clear(Call *self)
{
    Py_CLEAR(self->error);
    return 0;
}

static void Call_dealloc(Call *self)
{
    PyObject_GC_UnTrack(self);
    Call_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyTypeObject CallType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "breakgraph.driver._native.Call",
    .tp_doc = "See breakgraph.driver.portable.Call.",
    .tp_basicsize = sizeof(Call),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = Call_new,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Call, vectorcall),
    .tp_traverse = (traverseproc)Call_traverse,
    .tp_clear = (inquiry)Call_clear,
    .tp_dealloc = (destructor)Call_dealloc,
};

/* --- Sequence: launches, and Python calls between them ----------------------------------------------------- */

typedef struct {
    uint64_t exec; /* 0: nothing to launch */
    PyObject *call; /* after it; NULL: nothing to call */
} Pair;

typedef struct {
    PyObject_HEAD
    Call *launch;
    PyObject *place; /* whose attribute "stream" is set while it runs */
    Py_ssize_t count, at;
    Pair *pairs;
} Sequence;

static PyObject *stream_name; /* "stream" */

static PyObject *Sequence_run(Sequence *self, PyObject *stream_object)
{
    uint64_t stream;
    self->at = -1;
    if (!as_word(stream_object, &stream) || PyObject_SetAttr(self->place, stream_name, stream_object))
        return NULL;
    Entry launch = self->launch->entry;
    for (Py_ssize_t at = 0; at < self->count; at++) {
        Pair *pair = &self->pairs[at];
        if (pair->exec != 0) {
            int code = launch(pair->exec, stream, 0, 0);
            if (code != 0) {
                self->at = 2 * at;
                return raise_code(self->launch->error, code);
            }
        }
        if (pair->call != NULL) {
            PyObject *result = PyObject_CallNoArgs(pair->call);
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
        self->pairs[self->count].call = call == Py_None ? NULL : Py_NewRef(call);
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
    {"at", T_PYSSIZET, offsetof(Sequence, at), READONLY, "See breakgraph.driver.portable.Sequence."},
    {NULL},
};

static PyTypeObject SequenceType = {
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

/* --- Claim: what one owner has at a time -------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *owner, *thread; /* weak references, or NULL */
    char is_open;
} Claim;

/* A new reference to what a weak reference refers to; NULL, and no error, where it is dead or there is none. */
static PyObject *alive(PyObject *reference)
{
    PyObject *found = NULL;
    if (reference == NULL)
        return NULL;
#if PY_VERSION_HEX >= 0x030D0000
    PyWeakref_GetRef(reference, &found);
#else
    found = PyWeakref_GET_OBJECT(reference);
    found = found == Py_None ? NULL : Py_NewRef(found);
#endif
    return found;
}

static int claim_take(Claim *self, PyObject *owner, PyObject *thread)
{
    PyObject *holder = alive(self->owner);
    if (holder != NULL) {
        Py_DECREF(holder);
        return 0;
    }
    Py_XSETREF(self->owner, Py_NewRef(owner));
    Py_XSETREF(self->thread, Py_NewRef(thread));
    return 1;
}

static PyObject *Claim_take(Claim *self, PyObject *args)
{
    PyObject *owner, *thread;
    if (!PyArg_ParseTuple(args, "O!O!", &_PyWeakref_RefType, &owner, &_PyWeakref_RefType, &thread))
        return NULL;
    return PyBool_FromLong(claim_take(self, owner, thread));
}

static PyObject *Claim_give(Claim *self, PyObject *owner)
{
    PyObject *holder = alive(self->owner);
    int mine = holder != NULL && holder == owner;
    Py_XDECREF(holder);
    if (mine)
        Py_CLEAR(self->owner);
    return PyBool_FromLong(mine);
}

static PyObject *Claim_get_owner(Claim *self, void *ignored)
{
    PyObject *found = alive(self->owner);
    return found != NULL ? found : Py_NewRef(Py_None);
}

static PyObject *Claim_get_thread(Claim *self, void *ignored)
{
    PyObject *found = alive(self->thread);
    return found != NULL ? found : Py_NewRef(Py_None);
}

static PyObject *Claim_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    if (!PyArg_ParseTuple(args, ""))
        return NULL;
    Claim *self = (Claim *)type->tp_alloc(type, 0);
    if (self != NULL)
        self->is_open = 1;
    return (PyObject *)self;
}

static int Claim_traverse(Claim *self, visitproc visit, void *arg)
{
    Py_VISIT(self->owner);
    Py_VISIT(self->thread);
    return 0;
}

static int Claim_clear(Claim *self)
{
    Py_CLEAR(self->owner);
    Py_CLEAR(self->thread);
    return 0;
}

static void Claim_dealloc(Claim *self)
{
    PyObject_GC_UnTrack(self);
    Claim_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef Claim_methods[] = {
    {"take", (PyCFunction)Claim_take, METH_VARARGS, "See breakgraph.driver.portable.Claim.take."},
    {"give", (PyCFunction)Claim_give, METH_O, "See breakgraph.driver.portable.Claim.give."},
    {NULL},
};

static PyMemberDef Claim_members[] = {
    {"is_open", T_BOOL, offsetof(Claim, is_open), 0, "See breakgraph.driver.portable.Claim."},
    {NULL},
};

static PyGetSetDef Claim_getset[] = {
    {"owner", (getter)Claim_get_owner, NULL, "Who has it, or None."},
    {"thread", (getter)Claim_get_thread, NULL, "The thread of its last owner, or None."},
    {NULL},
};

static PyTypeObject ClaimType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "breakgraph.driver._native.Claim",
    .tp_doc = "See breakgraph.driver.portable.Claim.",
    .tp_basicsize = sizeof(Claim),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = Claim_new,
    .tp_methods = Claim_methods,
    .tp_members = Claim_members,
    .tp_getset = Claim_getset,
    .tp_traverse = (traverseproc)Claim_traverse,
    .tp_clear = (inquiry)Claim_clear,
    .tp_dealloc = (destructor)Claim_dealloc,
};

/* --- Round: a sequence from its first check to its last mark, where nothing is out of the ordinary ----------- */

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
    if (self->get_context->entry((uint64_t)(uintptr_t)&context, 0, 0, 0) != 0 || context != self->context
        || self->is_capturing->entry(stream, (uint64_t)(uintptr_t)&status, 0, 0) != 0 || status != 0
        || !claim_take(self->claim, owner, thread))
        Py_RETURN_FALSE;
    if (!self->is_open || !self->claim->is_open) {
        Py_CLEAR(self->claim->owner);
        Py_RETURN_FALSE;
    }
    sequence->at = -1;
    int code = self->wait_event->entry(stream, self->event, 0, 0);
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
        code = self->record_event->entry(self->event, stream, 0, 0);
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

static PyTypeObject RoundType = {
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

/* --- detour: a function, or another one while a set has something in it ------------------------------------- */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *function, *other, *when, *dict, *weakrefs;
} Detour;

static PyObject *Detour_vectorcall(PyObject *callable, PyObject *const *args, size_t flags, PyObject *names)
{
    Detour *self = (Detour *)callable;
    PyObject *taken = PySet_GET_SIZE(self->when) ? self->other : self->function;
    return PyObject_Vectorcall(taken, args, flags, names);
}

static PyObject *Detour_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"function", "other", "when", NULL};
    PyObject *function, *other, *when;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO!", names, &function, &other, &PySet_Type, &when))
        return NULL;
    Detour *self = (Detour *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->vectorcall = Detour_vectorcall;
    self->function = Py_NewRef(function);
    self->other = Py_NewRef(other);
    self->when = Py_NewRef(when);
    return (PyObject *)self;
}

static PyObject *Detour_get(PyObject *self, PyObject *instance, PyObject *owner)
{
    return instance == NULL || instance == Py_None ? Py_NewRef(self) : PyMethod_New(self, instance);
}

static PyObject *Detour_repr(PyObject *self)
{
    PyObject *name = PyObject_GetAttrString(self, "__qualname__");
    PyObject *repr = name ? PyUnicode_FromFormat("<break point %S at %p>", name, self) : NULL;
    Py_XDECREF(name);
    return repr;
}

static PyObject *Detour_reduce(PyObject *self, PyObject *ignored)
{
    return PyObject_GetAttrString(self, "__qualname__"); /* pickled by name, as functions are */
}

static PyObject *Detour_itself(PyObject *self, PyObject *ignored)
{
    return Py_NewRef(self);
}

static int Detour_traverse(Detour *self, visitproc visit, void *arg)
{
    Py_VISIT(self->function);
    Py_VISIT(self->other);
    Py_VISIT(self->when);
    Py_VISIT(self->dict);
    return 0;
}

static int Detour_clear(Detour *self)
{
    Py_CLEAR(self->function);
    Py_CLEAR(self->other);
    Py_CLEAR(self->when);
    Py_CLEAR(self->dict);
    return 0;
}

static void Detour_dealloc(Detour *self)
{
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL)
        PyObject_ClearWeakRefs((PyObject *)self);
    Detour_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef Detour_methods[] = {
    {"__reduce__", Detour_reduce, METH_NOARGS, NULL},
    {"__copy__", Detour_itself, METH_NOARGS, NULL},
    {"__deepcopy__", Detour_itself, METH_O, NULL},
    {NULL},
};

static PyGetSetDef Detour_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict},
    {NULL},
};

static PyTypeObject DetourType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "breakgraph.driver._native.detour",
    .tp_doc = NULL, /* an instance has its function's */
    .tp_basicsize = sizeof(Detour),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_new = Detour_new,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Detour, vectorcall),
    .tp_dictoffset = offsetof(Detour, dict),
    .tp_weaklistoffset = offsetof(Detour, weakrefs),
    .tp_descr_get = Detour_get,
    .tp_repr = Detour_repr,
    .tp_methods = Detour_methods,
    .tp_getset = Detour_getset,
    .tp_traverse = (traverseproc)Detour_traverse,
    .tp_clear = (inquiry)Detour_clear,
    .tp_dealloc = (destructor)Detour_dealloc,
};

/* --- the module -------------------------------------------------------------------------------------------- */

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "_native", .m_size = -1};

PyMODINIT_FUNC PyInit__native(void)
{
    PyObject *made = PyModule_Create(&module);
    stream_name = PyUnicode_InternFromString("stream");
    if (made == NULL || stream_name == NULL || PyModule_AddType(made, &CallType) || PyModule_AddType(made, &SequenceType)
        || PyModule_AddType(made, &ClaimType) || PyModule_AddType(made, &RoundType)
        || PyModule_AddType(made, &DetourType)) {
        Py_XDECREF(made);
        return NULL;
    }
    return made;
}
