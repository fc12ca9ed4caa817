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

/* What a slot's letter stands for; portable.py says what each means. */
enum { WORD = 'w', ANSWER = 'a', EXCHANGED = 'x', OUR_LIST = 'l', THEIR_LIST = 'p', NUMBER = 'n' };

/* The cells that the function writes to, one for each slot, and the lists that are ours, one after the other. */
typedef struct {
    uint64_t cells[MOST_WORDS], number;
    uint64_t *lists, room; /* NULL: it only counts */
} Places;

/* Makes the call once. Returns its code, or -1 where something is raised. */
static int call_once(Call *self, PyObject *const *args, Places *places)
{
    uint64_t words[MOST_WORDS] = {0}, *list = places->lists;
    places->number = self->lists && list != NULL ? places->room : 0;
    for (int at = 0; self->slots[at]; at++) {
        uint64_t *cell = &places->cells[at];
        *cell = 0;
        words[at] = (uint64_t)(uintptr_t)cell;
        switch (self->slots[at]) {
        case WORD:
            if (!as_word(*args++, &words[at]))
                return -1;
            break;
        case EXCHANGED:
            if (!as_word(*args++, cell))
                return -1;
            break;
        case OUR_LIST:
            words[at] = *cell = (uint64_t)(uintptr_t)list;
            list = list == NULL ? NULL : list + places->room;
            break;
        case NUMBER:
            words[at] = (uint64_t)(uintptr_t)&places->number;
        }
    }
    if (!self->yields)
        return enter(self->entry, words);
    PyThreadState *state = PyEval_SaveThread();
    int code = enter(self->entry, words);
    PyEval_RestoreThread(state);
    return code;
}

static PyObject *listed(const uint64_t *words, uint64_t number)
{
    PyObject *made = PyTuple_New(words == NULL ? 0 : (Py_ssize_t)number);
    for (Py_ssize_t at = 0; made != NULL && at < PyTuple_GET_SIZE(made); at++) {
        PyObject *word = PyLong_FromUnsignedLongLong(words[at]);
        if (word == NULL)
            Py_CLEAR(made);
        else
            PyTuple_SET_ITEM(made, at, word);
    }
    return made;
}

/* The answers in the order of their slots: None, the only one, or a tuple. */
static PyObject *answer(Call *self, const Places *places)
{
    PyObject *answers = self->answers > 1 ? PyTuple_New(self->answers) : Py_NewRef(Py_None);
    Py_ssize_t given = 0;
    for (int at = 0; answers != NULL && self->slots[at]; at++) {
        char slot = self->slots[at];
        uint64_t cell = places->cells[at];
        if (slot == WORD || slot == NUMBER)
            continue;
        PyObject *one = slot == ANSWER || slot == EXCHANGED
                            ? PyLong_FromUnsignedLongLong(cell)
                            : listed((const uint64_t *)(uintptr_t)cell, places->number);
        if (self->answers == 1 || one == NULL)
            Py_SETREF(answers, one);
        else
            PyTuple_SET_ITEM(answers, given++, one);
    }
    return answers;
}

static PyObject *Call_vectorcall(PyObject *callable, PyObject *const *args, size_t flags, PyObject *names)
{
    Call *self = (Call *)callable;
    uint64_t few[MOST_WORDS * FEW];
    Places places = {.lists = few, .room = FEW};
    PyObject *result = NULL;
    if (PyVectorcall_NARGS(flags) != self->words || (names != NULL && PyTuple_GET_SIZE(names))) {
        PyErr_Format(PyExc_TypeError, "takes %zd positional arguments", self->words);
        return NULL;
    }
    int code = call_once(self, args, &places);
    while (code == 0 && self->lists && places.number >= places.room) { /* there may be more than fit in */
        Places counted = {.lists = NULL};
        if ((code = call_once(self, args, &counted)) != 0)
            break;
        places.room = counted.number + 1;
        uint64_t *more = PyMem_Realloc(places.lists == few ? NULL : places.lists,
                                       self->lists * places.room * sizeof(uint64_t));
        if (more == NULL) {
            PyErr_NoMemory();
            break;
        }
        places.lists = more;
        code = call_once(self, args, &places);
    }
    if (!PyErr_Occurred()) {
        if (self->unready && (code == 0 || code == self->unready))
            result = PyBool_FromLong(code == 0);
        else
            result = code == 0 ? answer(self, &places) : raise_code(self->error, code);
    }
    if (places.lists != few)
        PyMem_Free(places.lists);
    return result;
}

/* Whether the letters are those of slots, and lists come with one number. */
static int fits(const char *slots)
{
    int lists = 0, numbers = 0;
    for (const char *slot = slots; *slot; slot++) {
        if (strchr("waxlpn", *slot) == NULL)
            return 0;
        lists += *slot == OUR_LIST || *slot == THEIR_LIST;
        numbers += *slot == NUMBER;
    }
    return strlen(slots) <= MOST_WORDS && numbers == (lists > 0);
}

static PyObject *Call_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"address", "slots", "error", "unready", "yields", NULL};
    unsigned long long address;
    const char *slots;
    PyObject *error;
    int unready = 0, yields = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "KsO|$ip", names, &address, &slots, &error, &unready, &yields))
        return NULL;
    if (address == 0 || !fits(slots)) {
        PyErr_SetString(PyExc_ValueError, "a call has an address, and up to eight slots");
        return NULL;
    }
    Call *self = (Call *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->vectorcall = Call_vectorcall;
    self->entry = (Entry)(uintptr_t)address;
    self->unready = unready;
    self->yields = yields;
    self->error = Py_NewRef(error);
    strcpy(self->slots, slots); /* as long as there are slots, at most */
    for (const char *slot = slots; *slot; slot++) {
        self->words += *slot == WORD || *slot == EXCHANGED;
        self->answers += *slot != WORD && *slot != NUMBER;
        self->lists += *slot == OUR_LIST;
    }
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
