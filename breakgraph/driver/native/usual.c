/* The usual replay: what has to be true of it, asked in one go, and then its round. */
#include "native.h"

typedef struct {
    PyObject_HEAD
    Round *round;
    Sequence *sequence;
    PyObject *current_stream, *owner, *stopped, *settle;    /* what it calls */
    PyObject *here, *choice;                                /* whose attributes it reads */
    PyObject *driver, *steps, *waiting;
    PyObject *last; /* owner, for the next one to be if nobody else has kept it; or NULL */
    uint64_t default_stream;
    Py_ssize_t whole;
    int needs_context;
} Usual;

static PyObject *capture_name, *contexts_name, *dict_name, *driver_name, *reference_name, *replays_name, *streams_name;

/* What the calling thread is doing: borrowed from a dictionary of its own. */
typedef struct {
    PyObject *all; /* the dictionary */
    PyObject *capture, *contexts, *reference, *replays, *streams;
} Here;

static PyObject *entry_of(PyObject *all, PyObject *name, int (*is_right)(PyObject *))
{
    PyObject *found = PyDict_GetItemWithError(all, name);
    if (found != NULL && is_right(found))
        return found;
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_TypeError, "the calling thread has no %U, or no right one", name);
    return NULL;
}

static int is_list(PyObject *object) { return PyList_Check(object); }
static int is_reference(PyObject *object) { return PyWeakref_CheckRef(object); }
static int is_any(PyObject *object) { return object != NULL; }

/* Whether it could be read; if so, `all` is a new reference. */
static int read_here(PyObject *thread_local, Here *here)
{
    PyObject *all = here->all = PyObject_GetAttr(thread_local, dict_name);
    if (all == NULL)
        return 0;
    if (PyDict_Check(all) && (here->capture = entry_of(all, capture_name, is_any)) != NULL
        && (here->contexts = entry_of(all, contexts_name, is_list)) != NULL
        && (here->reference = entry_of(all, reference_name, is_reference)) != NULL
        && (here->replays = entry_of(all, replays_name, is_list)) != NULL
        && (here->streams = entry_of(all, streams_name, is_list)) != NULL)
        return 1;
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_TypeError, "here is not of each thread's own");
    Py_CLEAR(here->all);
    return 0;
}

static int has_context(const Here *here)
{
    Py_ssize_t count = PyList_GET_SIZE(here->contexts);
    return count > 0 && PyList_GET_ITEM(here->contexts, count - 1) != Py_None;
}

/* -1 where it cannot be told. */
static int is_usual(Usual *self, const Here *here)
{
    if (here->capture != Py_None || PyList_GET_SIZE(self->steps) != self->whole
        || (self->needs_context && !has_context(here)))
        return 0;
    PyObject *driver = PyObject_GetAttr(self->choice, driver_name);
    Py_XDECREF(driver);
    return driver == NULL ? -1 : driver == self->driver;
}

/* The stream that it belongs on, as a new reference; None where it is not to be told. */
static PyObject *stream_of(Usual *self)
{
    PyObject *stream = PyObject_CallNoArgs(self->current_stream);
    if (stream == NULL || stream == Py_None)
        return stream;
    uint64_t word;
    if (!as_word(stream, &word)) {
        Py_DECREF(stream);
        return NULL;
    }
    if (word == 0) {
        Py_DECREF(stream);
        stream = PyLong_FromUnsignedLongLong(self->default_stream);
    }
    return stream;
}

/* Whom the round is claimed for, as a new reference. */
static PyObject *owner_on(Usual *self, PyObject *stream)
{
    if (self->last != NULL && Py_REFCNT(self->last) == 1) {
        PyObject *owner = self->last;
        self->last = NULL; /* not for one that begins before this one has ended */
        if (PyObject_SetAttr(owner, stream_name, stream) == 0)
            return owner;
        Py_DECREF(owner);
        return NULL;
    }
    return PyObject_CallOneArg(self->owner, stream);
}

/* After it has run, or stopped: whoever waits is woken, and the context is the caller's. */
static int settled(Usual *self)
{
    uint64_t context = 0;
    if (PyDict_GET_SIZE(self->waiting) == 0 && ENTER(self->round->get_context, ADDRESS_OF(context)) == 0
        && context == self->round->context)
        return 1;
    PyObject *result = PyObject_CallNoArgs(self->settle);
    Py_XDECREF(result);
    return result != NULL;
}

/* An error is on its way: it is told where, everything is settled, and it goes on; or what fails of that does. */
static void stop(Usual *self)
{
    PyObject *error = raised(), *told = PyObject_CallOneArg(self->stopped, error);
    PyObject *later = told == NULL ? raised() : NULL;
    Py_XDECREF(told);
    if (!settled(self))
        Py_XSETREF(later, raised());
    if (later != NULL)
        raise_again(later, error);
    else
        raise_again(error, NULL);
}

/* 1 where it has run, 0 where it is not to be run here, -1 with an exception. */
static int usual_run(Usual *self, const Here *here)
{
    int done = is_usual(self, here);
    if (done <= 0)
        return done;
    PyObject *stream = stream_of(self);
    if (stream == NULL || stream == Py_None) {
        Py_XDECREF(stream);
        return stream == NULL ? -1 : 0;
    }
    PyObject *owner = owner_on(self, stream);
    PyObject *reference = owner ? PyWeakref_NewRef(owner, NULL) : NULL;
    done = -1;
    if (reference != NULL) {
        done = round_run(self->round, self->sequence, stream, reference, here->reference, here->replays, here->streams);
        if (done < 0)
            stop(self);
        else if (done && !settled(self))
            done = -1;
    }
    Py_XDECREF(reference);
    Py_XSETREF(self->last, owner);
    Py_DECREF(stream);
    return done;
}

static PyObject *Usual_run(Usual *self, PyObject *ignored)
{
    Here here;
    if (!read_here(self->here, &here))
        return NULL;
    PyObject *replays = Py_NewRef(here.replays), *streams = Py_NewRef(here.streams);
    PyObject *reference = Py_NewRef(here.reference);
    int done = usual_run(self, &here);
    Py_DECREF(reference);
    Py_DECREF(streams);
    Py_DECREF(replays);
    Py_DECREF(here.all);
    return done < 0 ? NULL : PyBool_FromLong(done);
}

static PyObject *Usual_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"round", "sequence", "current_stream", "default_stream", "owner", "here",
                            "choice", "driver", "steps", "needs_context", "waiting", "stopped", "settle",
                            NULL};
    PyObject *round, *sequence, *current_stream, *owner, *here, *choice, *driver, *steps, *waiting,
        *stopped, *settle;
    unsigned long long default_stream;
    int needs_context;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!OKOOOOO!pO!OO", names, &RoundType, &round, &SequenceType,
                                     &sequence, &current_stream, &default_stream, &owner, &here,
                                     &choice, &driver, &PyList_Type, &steps, &needs_context, &PyDict_Type, &waiting,
                                     &stopped, &settle))
        return NULL;
    Usual *self = (Usual *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->round = (Round *)Py_NewRef(round);
    self->sequence = (Sequence *)Py_NewRef(sequence);
    self->current_stream = Py_NewRef(current_stream);
    self->default_stream = default_stream;
    self->owner = Py_NewRef(owner);
    self->here = Py_NewRef(here);
    self->choice = Py_NewRef(choice);
    self->driver = Py_NewRef(driver);
    self->steps = Py_NewRef(steps);
    self->whole = PyList_GET_SIZE(steps);
    self->needs_context = needs_context;
    self->waiting = Py_NewRef(waiting);
    self->stopped = Py_NewRef(stopped);
    self->settle = Py_NewRef(settle);
    return (PyObject *)self;
}

static int Usual_traverse(Usual *self, visitproc visit, void *arg)
{
    Py_VISIT(self->round);
    Py_VISIT(self->sequence);
    Py_VISIT(self->current_stream);
    Py_VISIT(self->owner);
    Py_VISIT(self->here);
    Py_VISIT(self->choice);
    Py_VISIT(self->driver);
    Py_VISIT(self->steps);
    Py_VISIT(self->waiting);
    Py_VISIT(self->last);
    Py_VISIT(self->stopped);
    Py_VISIT(self->settle);
    return 0;
}

/* Not while it runs: whoever runs it holds a reference, so neither the collector nor a destructor gets here. */
static int Usual_clear(Usual *self)
{
    Py_CLEAR(self->round);
    Py_CLEAR(self->sequence);
    Py_CLEAR(self->current_stream);
    Py_CLEAR(self->owner);
    Py_CLEAR(self->here);
    Py_CLEAR(self->choice);
    Py_CLEAR(self->driver);
    Py_CLEAR(self->steps);
    Py_CLEAR(self->waiting);
    Py_CLEAR(self->last);
    Py_CLEAR(self->stopped);
    Py_CLEAR(self->settle);
    return 0;
}

static void Usual_dealloc(Usual *self)
{
    PyObject_GC_UnTrack(self);
    Usual_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef Usual_methods[] = {
    {"run", (PyCFunction)Usual_run, METH_NOARGS, "See breakgraph.driver.portable.Usual.run."},
    {NULL},
};

PyTypeObject UsualType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "breakgraph.driver._native.Usual",
    .tp_doc = "See breakgraph.driver.portable.Usual.",
    .tp_basicsize = sizeof(Usual),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = Usual_new,
    .tp_methods = Usual_methods,
    .tp_traverse = (traverseproc)Usual_traverse,
    .tp_clear = (inquiry)Usual_clear,
    .tp_dealloc = (destructor)Usual_dealloc,
};

int usual_names(void)
{
    return (capture_name = PyUnicode_InternFromString("capture")) != NULL
        && (contexts_name = PyUnicode_InternFromString("contexts")) != NULL
        && (dict_name = PyUnicode_InternFromString("__dict__")) != NULL
        && (driver_name = PyUnicode_InternFromString("driver")) != NULL
        && (reference_name = PyUnicode_InternFromString("reference")) != NULL
        && (replays_name = PyUnicode_InternFromString("replays")) != NULL
        && (streams_name = PyUnicode_InternFromString("streams")) != NULL;
}
