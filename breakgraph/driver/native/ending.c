/* The end of a capture: its graph, and the exec of that. */
#include "native.h"

typedef struct {
    PyObject_HEAD
    PyObject *exchange_mode, *get_info, *get_nodes, *get_edges, *end_capture, *get_type, *instantiate;
    PyObject *relaxed;
    long active;
} Ending;

static PyObject *handle_name; /* "handle" */

/* Whether each node has an edge to another one, or is among those that the stream's next node depends on. */
static int none_is_open(Ending *self, PyObject *graph, PyObject *nodes, PyObject *heads)
{
    int same = PyObject_RichCompareBool(nodes, heads, Py_EQ); /* as of one kernel on the origin */
    if (same != 0)
        return same;
    PyObject *edges = PyObject_CallOneArg(self->get_edges, graph);
    PyObject *tails = edges ? PySequence_GetItem(edges, 0) : NULL;
    PyObject *behind = tails ? PySet_New(heads) : NULL;
    PyObject *updated = behind ? PyObject_CallMethod(behind, "update", "(O)", tails) : NULL;
    int all = updated ? 1 : -1;
    for (Py_ssize_t at = 0; all > 0 && at < PyTuple_GET_SIZE(nodes); at++)
        all = PySet_Contains(behind, PyTuple_GET_ITEM(nodes, at));
    Py_XDECREF(updated);
    Py_XDECREF(behind);
    Py_XDECREF(tails);
    Py_XDECREF(edges);
    return all;
}

/* The nodes captured so far, if the stream's next one comes after all of them; else None. */
static PyObject *joined_nodes(Ending *self, PyObject *stream)
{
    PyObject *info = PyObject_CallOneArg(self->get_info, stream), *nodes = NULL;
    if (info == NULL)
        return NULL;
    if (!PyTuple_Check(info) || PyTuple_GET_SIZE(info) < 4) {
        PyErr_SetString(PyExc_TypeError, "a capture's info is a tuple: status, id, graph, dependencies");
        goto done;
    }
    PyObject *graph = PyTuple_GET_ITEM(info, 2);
    long status = PyLong_AsLong(PyTuple_GET_ITEM(info, 0));
    if (status == -1 && PyErr_Occurred())
        goto done;
    nodes = status == self->active ? PyObject_CallOneArg(self->get_nodes, graph) : PyTuple_New(0);
    if (nodes != NULL && !PyTuple_Check(nodes)) {
        PyErr_SetString(PyExc_TypeError, "a graph's nodes are a tuple");
        Py_CLEAR(nodes);
    }
    if (nodes != NULL && status == self->active) {
        int all = none_is_open(self, graph, nodes, PyTuple_GET_ITEM(info, 3));
        if (all <= 0)
            Py_SETREF(nodes, all == 0 ? Py_NewRef(Py_None) : NULL);
    }
done:
    Py_DECREF(info);
    return nodes;
}

/* Ends the capture, and instantiates its graph for `made` unless that is None. Returns the nodes and their types. */
static PyObject *end(Ending *self, PyObject *stream, PyObject *graphs, PyObject *made, PyObject *nodes)
{
    PyObject *graph = PyObject_CallOneArg(self->end_capture, stream), *kinds = NULL, *ended = NULL;
    if (graph == NULL)
        return NULL;
    if (PyList_Append(graphs, graph) == 0) /* from here on it has an owner */
        kinds = PyTuple_New(PyTuple_GET_SIZE(nodes));
    for (Py_ssize_t at = 0; kinds != NULL && at < PyTuple_GET_SIZE(nodes); at++) {
        PyObject *kind = PyObject_CallOneArg(self->get_type, PyTuple_GET_ITEM(nodes, at));
        if (kind == NULL)
            Py_CLEAR(kinds);
        else
            PyTuple_SET_ITEM(kinds, at, kind);
    }
    if (kinds != NULL && made != Py_None && PyTuple_GET_SIZE(nodes)) {
        PyObject *handle = PyObject_CallFunction(self->instantiate, "Oi", graph, 0);
        if (handle == NULL || PyObject_SetAttr(made, handle_name, handle))
            Py_CLEAR(kinds);
        Py_XDECREF(handle);
    }
    if (kinds != NULL)
        ended = PyTuple_Pack(2, nodes, kinds);
    Py_XDECREF(kinds);
    Py_DECREF(graph);
    return ended;
}

/* The error that is being raised; NULL for none. */
PyObject *raised(void)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (type == NULL)
        return NULL;
    PyErr_NormalizeException(&type, &value, &traceback);
    if (traceback != NULL)
        PyException_SetTraceback(value, traceback);
    Py_DECREF(type);
    Py_XDECREF(traceback);
    return value;
}

/* Raises an error again, where another one was on its way: that is its context. Takes both. */
void raise_again(PyObject *error, PyObject *earlier)
{
    if (earlier != NULL)
        PyException_SetContext(error, earlier);
    PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(error)), error, PyException_GetTraceback(error));
}

/* Gives the thread its mode back: once more where that fails, since a thread left relaxed would harm later captures.
 * Returns whether nothing is being raised. */
static int exchange_back(Ending *self, PyObject *before)
{
    PyObject *on_its_way = raised(), *error = NULL;
    PyObject *done = PyObject_CallOneArg(self->exchange_mode, before);
    if (done == NULL) {
        error = raised();
        done = PyObject_CallOneArg(self->exchange_mode, before);
        if (done == NULL)
            Py_SETREF(error, raised());
        else if (PyObject_TypeCheck(error, (PyTypeObject *)PyExc_Exception))
            Py_CLEAR(error); /* an interrupt goes on */
    }
    Py_XDECREF(done);
    if (error != NULL)
        raise_again(error, on_its_way);
    else if (on_its_way != NULL)
        raise_again(on_its_way, NULL);
    return error == NULL && on_its_way == NULL;
}

static PyObject *Ending_run(Ending *self, PyObject *args)
{
    PyObject *stream, *graphs, *made, *given = Py_None;
    if (!PyArg_ParseTuple(args, "OO!O|O", &stream, &PyList_Type, &graphs, &made, &given))
        return NULL;
    if (given != Py_None && !PyTuple_Check(given)) {
        PyErr_SetString(PyExc_TypeError, "a graph's nodes are a tuple");
        return NULL;
    }
    PyObject *before = PyObject_CallOneArg(self->exchange_mode, self->relaxed);
    if (before == NULL)
        return NULL;
    PyObject *nodes = given != Py_None ? Py_NewRef(given) : joined_nodes(self, stream);
    PyObject *ended = nodes == NULL || nodes == Py_None ? Py_XNewRef(nodes) : end(self, stream, graphs, made, nodes);
    if (!exchange_back(self, before))
        Py_CLEAR(ended);
    Py_XDECREF(nodes);
    Py_DECREF(before);
    return ended;
}

static PyObject *Ending_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"exchange_mode", "get_info", "get_nodes", "get_edges", "end_capture",
                            "get_type", "instantiate", "relaxed", "active", NULL};
    PyObject *exchange_mode, *get_info, *get_nodes, *get_edges, *end_capture, *get_type, *instantiate, *relaxed;
    long active;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOOOOOl", names, &exchange_mode, &get_info, &get_nodes,
                                     &get_edges, &end_capture, &get_type, &instantiate, &relaxed, &active))
        return NULL;
    if (handle_name == NULL && (handle_name = PyUnicode_InternFromString("handle")) == NULL)
        return NULL;
    Ending *self = (Ending *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->exchange_mode = Py_NewRef(exchange_mode);
    self->get_info = Py_NewRef(get_info);
    self->get_nodes = Py_NewRef(get_nodes);
    self->get_edges = Py_NewRef(get_edges);
    self->end_capture = Py_NewRef(end_capture);
    self->get_type = Py_NewRef(get_type);
    self->instantiate = Py_NewRef(instantiate);
    self->relaxed = Py_NewRef(relaxed);
    self->active = active;
    return (PyObject *)self;
}

static int Ending_traverse(Ending *self, visitproc visit, void *arg)
{
    Py_VISIT(self->exchange_mode);
    Py_VISIT(self->get_info);
    Py_VISIT(self->get_nodes);
    Py_VISIT(self->get_edges);
    Py_VISIT(self->end_capture);
    Py_VISIT(self->get_type);
    Py_VISIT(self->instantiate);
    Py_VISIT(self->relaxed);
    return 0;
}

/* Not while it runs: whoever runs it holds a reference, so neither the collector nor a destructor gets here. */
static int Ending_clear(Ending *self)
{
    Py_CLEAR(self->exchange_mode);
    Py_CLEAR(self->get_info);
    Py_CLEAR(self->get_nodes);
    Py_CLEAR(self->get_edges);
    Py_CLEAR(self->end_capture);
    Py_CLEAR(self->get_type);
    Py_CLEAR(self->instantiate);
    Py_CLEAR(self->relaxed);
    return 0;
}

static void Ending_dealloc(Ending *self)
{
    PyObject_GC_UnTrack(self);
    Ending_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef Ending_methods[] = {
    {"run", (PyCFunction)Ending_run, METH_VARARGS, "See breakgraph.driver.portable.Ending.run."},
    {NULL},
};

PyTypeObject EndingType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "breakgraph.driver._native.Ending",
    .tp_doc = "See breakgraph.driver.portable.Ending.",
    .tp_basicsize = sizeof(Ending),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = Ending_new,
    .tp_methods = Ending_methods,
    .tp_traverse = (traverseproc)Ending_traverse,
    .tp_clear = (inquiry)Ending_clear,
    .tp_dealloc = (destructor)Ending_dealloc,
};
