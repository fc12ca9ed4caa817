/* One driver call. */
#include "native.h"

PyObject *raise_code(PyObject *error, int code)
{
    PyObject *raised = PyObject_CallFunction(error, "i", code);
    if (raised != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(raised), raised);
        Py_DECREF(raised);
    }
    return NULL;
}

/* What has an index as a word, which is its lowest 64 bits, as ctypes has it. */
int as_word(PyObject *given, uint64_t *word)
{
    *word = PyLong_AsUnsignedLongLongMask(given);
    return *word != (uint64_t)-1 || !PyErr_Occurred();
}

static PyObject *Call_vectorcall(PyObject *callable, PyObject *const *args, size_t flags, PyObject *names)
{
    Call *self = (Call *)callable;
    Py_ssize_t given = PyVectorcall_NARGS(flags);
    uint64_t words[MOST_WORDS] = {0}, answer = 0;
    if (given != self->words || (names != NULL && PyTuple_GET_SIZE(names))) {
        PyErr_Format(PyExc_TypeError, "takes %zd positional arguments", self->words);
        return NULL;
    }
    for (Py_ssize_t at = 0; at < given; at++)
        if (!as_word(args[at], &words[at]))
            return NULL;
    if (self->answers)
        words[given] = (uint64_t)(uintptr_t)&answer;
    int code = enter(self->entry, words);
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
        PyErr_SetString(PyExc_ValueError, "a call has an address, and takes up to eight words with its answer");
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

PyTypeObject CallType = {
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
