// Which signals our threads take.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace fastio {

// In its scope, new threads are started with all signals blocked: they belong to the interpreter's
// main thread, and a thread of ours that took one would only delay it. Faults of a thread's own are
// not blocked, since the system ends a process whose thread does not take them (see mapping.h).
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    for (const int fault : {SIGBUS, SIGSEGV, SIGFPE, SIGILL}) sigdelset(&all, fault);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace fastio
