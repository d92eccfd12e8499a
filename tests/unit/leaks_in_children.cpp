// SPDX-License-Identifier: Apache-2.0
// A child of fork(2) does not look for leaks: its parent's threads are listed there and cannot be stopped, so that what
// it finds may be none, and on a busy machine it has looked for 20 s.
#include <unistd.h>

namespace {

const pid_t first_process = ::getpid();

}  // namespace

extern "C" int __lsan_is_turned_off();  // NOLINT(bugprone-reserved-identifier)
extern "C" int __lsan_is_turned_off() { return ::getpid() == first_process ? 0 : 1; }
