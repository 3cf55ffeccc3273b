/* See thread.h. */
#include "base/thread.h"

#include <signal.h>

int thread_start(pthread_t *out, const char *name, size_t stack_bytes, void *(*main)(void *),
                 void *arg)
{
    pthread_attr_t attributes;
    sigset_t all, before;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, stack_bytes);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the new thread inherits it */
    int failed = pthread_create(out, &attributes, main, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (!failed)
        pthread_setname_np(*out, name);
    return failed;
}
