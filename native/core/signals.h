// The signal mask of worker threads.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace fastio {

// While an object exists, threads that the current thread starts have all signals blocked: the
// interpreter handles signals in its main thread, and a worker that received one would only delay
// it. Synchronous faults are not blocked, because the system kills a process if a fault's signal is
// blocked (see mapping.h).
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
