/* What replay does thousands of times a second, in C: driver calls that keep the interpreter lock, a loop of launches
 * and Python calls, the claim and the marks around it, and a function's detour; and the end of a capture. portable.py has the same in Python;
 * quick.py chooses.
 *
 * Nothing here knows CUDA. A driver call is an address that takes up to eight machine words and answers an int, which
 * is how the calling conventions of x86-64 and of AArch64 pass handles, sizes and small integers alike; whoever is
 * called takes as many as it knows of.
 */
#ifndef BREAKGRAPH_NATIVE_H
#define BREAKGRAPH_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>

#define MOST_WORDS 8

typedef int (*Entry)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

#define FEW 32 /* entries of a list for which there is room without asking how many there are */

/* call.c: one driver call. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Entry entry;
    PyObject *error;            /* from a result code that is not 0 to the exception to raise */
    char slots[MOST_WORDS + 1]; /* a letter for each of the function's parameters */
    Py_ssize_t words;           /* that the caller gives */
    Py_ssize_t answers;         /* that the caller is given */
    size_t lists;               /* that it needs room for */
    int unready;                /* the result code that means "not yet", or 0 */
    int yields;                 /* whether it gives the interpreter lock up */
} Call;

/* Calls it with as many words as are given, the others being 0. */
#define ENTER(call, ...) enter((call)->entry, (const uint64_t[MOST_WORDS]){__VA_ARGS__})
#define ADDRESS_OF(answer) ((uint64_t)(uintptr_t)&(answer))

static inline int enter(Entry entry, const uint64_t *words)
{
    return entry(words[0], words[1], words[2], words[3], words[4], words[5], words[6], words[7]);
}

PyObject *raise_code(PyObject *error, int code);
int as_word(PyObject *given, uint64_t *word);

/* sequence.c: launches, and Python calls between them. */
typedef struct {
    uint64_t exec; /* 0: nothing to launch */
    PyObject *call;            /* after it; NULL: nothing to call */
    vectorcallfunc vectorcall; /* what its type calls it by, if it has such a thing */
} Pair;

typedef struct {
    PyObject_HEAD
    Call *launch;
    PyObject *place; /* whose attribute "stream" is set while it runs */
    Py_ssize_t count, at;
    long long entries; /* of a tally, that it makes room for */
    Pair *pairs;
} Sequence;

extern PyObject *stream_name; /* "stream" */
PyObject *Sequence_run(Sequence *self, PyObject *stream);

/* claim.c: what one owner has at a time. */
typedef struct {
    PyObject_HEAD
    PyObject *owner, *thread; /* weak references, or NULL */
    char is_open;
} Claim;

int claim_take(Claim *self, PyObject *owner, PyObject *thread);

/* tally.c: a count, and the room that is left of it. */
typedef struct {
    PyObject_HEAD
    long long entries, most;
} Tally;

/* round.c: a sequence from its first check to its last mark, where nothing is out of the ordinary. */
typedef struct {
    PyObject_HEAD
    uint64_t context, event, relaxed;
    char is_open;
    Claim *claim;
    Tally *tally;
    Call *get_context, *is_capturing, *wait_event, *record_event, *query_event, *exchange_mode;
} Round;

int round_run(Round *self, Sequence *sequence, PyObject *stream, PyObject *owner, PyObject *thread, PyObject *owners,
              PyObject *streams);

/* ending.c: the end of a capture; and errors on their way. */
PyObject *raised(void);
void raise_again(PyObject *error, PyObject *earlier);

/* usual.c: what has to be true of a usual replay, asked in one go, and then its round. */
int usual_names(void);

extern PyTypeObject CallType, SequenceType, ClaimType, TallyType, RoomType, RoundType, UsualType, EndingType, DetourType;

#endif
