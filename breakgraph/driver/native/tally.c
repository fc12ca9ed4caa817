/* A count, and the room that is left of it. */
#include "native.h"

/* --- Tally ------------------------------------------------------------------------------------------------- */

static PyObject *Tally_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"most", NULL};
    long long most;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "L", names, &most))
        return NULL;
    Tally *self = (Tally *)type->tp_alloc(type, 0);
    if (self != NULL)
        self->most = most;
    return (PyObject *)self;
}

static PyMemberDef Tally_members[] = {
    {"entries", T_LONGLONG, offsetof(Tally, entries), 0, "See breakgraph.driver.portable.Tally."},
    {"most", T_LONGLONG, offsetof(Tally, most), READONLY, "See breakgraph.driver.portable.Tally."},
    {NULL},
};

PyTypeObject TallyType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "breakgraph.driver._native.Tally",
    .tp_doc = "See breakgraph.driver.portable.Tally.",
    .tp_basicsize = sizeof(Tally),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = Tally_new,
    .tp_members = Tally_members,
};

/* --- Room -------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Tally *tally;
    PyObject *otherwise;
    long long entries;
} Room;

static PyObject *Room_vectorcall(PyObject *callable, PyObject *const *args, size_t flags, PyObject *names)
{
    Room *self = (Room *)callable;
    if (PyVectorcall_NARGS(flags) || (names != NULL && PyTuple_GET_SIZE(names))) {
        PyErr_SetString(PyExc_TypeError, "takes no arguments");
        return NULL;
    }
    if (self->tally->entries + self->entries > self->tally->most) {
        PyObject *result = PyObject_CallNoArgs(self->otherwise);
        if (result == NULL)
            return NULL;
        Py_DECREF(result);
    }
    self->tally->entries += self->entries;
    Py_RETURN_NONE;
}

static PyObject *Room_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"tally", "otherwise", NULL};
    PyObject *tally, *otherwise;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O", names, &TallyType, &tally, &otherwise))
        return NULL;
    Room *self = (Room *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->vectorcall = Room_vectorcall;
    self->tally = (Tally *)Py_NewRef(tally);
    self->otherwise = Py_NewRef(otherwise);
    return (PyObject *)self;
}

static int Room_traverse(Room *self, visitproc visit, void *arg)
{
    Py_VISIT(self->otherwise);
    return 0;
}

static int Room_clear(Room *self)
{
    Py_CLEAR(self->otherwise);
    return 0;
}

static void Room_dealloc(Room *self)
{
    PyObject_GC_UnTrack(self);
    Room_clear(self);
    Py_XDECREF(self->tally);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMemberDef Room_members[] = {
    {"entries", T_LONGLONG, offsetof(Room, entries), 0, "See breakgraph.driver.portable.Room."},
    {NULL},
};

PyTypeObject RoomType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "breakgraph.driver._native.Room",
    .tp_doc = "See breakgraph.driver.portable.Room.",
    .tp_basicsize = sizeof(Room),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = Room_new,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Room, vectorcall),
    .tp_members = Room_members,
    .tp_traverse = (traverseproc)Room_traverse,
    .tp_clear = (inquiry)Room_clear,
    .tp_dealloc = (destructor)Room_dealloc,
};
