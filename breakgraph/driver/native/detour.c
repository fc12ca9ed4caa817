/* A function, or another one while a set has something in it. */
#include "native.h"

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

PyTypeObject DetourType = {
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
