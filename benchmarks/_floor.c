/* The floor of a replay: cuGraphLaunch in a loop, with nothing of Python in it.
 *
 * The driver is opened by name, so that no CUDA header and no import library is needed to build this. */
#include <dlfcn.h>
#include <stddef.h>
#include <time.h>

static int (*launch)(void *exec, void *stream);
static int (*synchronize)(void *stream);

/* 0, or what the dynamic loader says is wrong. */
const char *floor_open(const char *library)
{
    void *driver = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!driver || !(launch = (int (*)(void *, void *))dlsym(driver, "cuGraphLaunch"))
        || !(synchronize = (int (*)(void *))dlsym(driver, "cuStreamSynchronize")))
        return dlerror();
    return 0;
}

/* Launch each exec once, and wait for the stream if asked to. `result` is the first CUresult that is not 0, at which
 * the loop ends. Returns the nanoseconds that this took. */
long long floor_launch(void *const *execs, size_t count, void *stream, int wait, int *result)
{
    struct timespec start, end;
    *result = 0;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (size_t at = 0; at < count && !*result; ++at)
        *result = launch(execs[at], stream);
    if (wait && !*result)
        *result = synchronize(stream);
    clock_gettime(CLOCK_MONOTONIC, &end);
    return (end.tv_sec - start.tv_sec) * 1000000000LL + (end.tv_nsec - start.tv_nsec);
}
