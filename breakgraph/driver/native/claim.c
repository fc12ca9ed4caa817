/* What one owner has at a time. */
#include "native.h"

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

int claim_take(Claim *self, PyObject *owner, PyObject *thread)
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

PyTypeObject ClaimType = {
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
