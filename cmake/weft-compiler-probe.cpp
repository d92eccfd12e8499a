// SPDX-License-Identifier: Apache-2.0
// Exits with 1 if the compiler destroys twice what is made inside braces in an expression with co_await: see
// docs/gcc-12.md.
#include <coroutine>
#include <utility>

int owners = 0;

struct resource {
  resource() noexcept = default;
  explicit resource(int) noexcept : owned(true) { ++owners; }
  resource(resource&& other) noexcept : owned(std::exchange(other.owned, false)) {}
  ~resource() {
    if (owned) --owners;
  }
  bool owned = false;
};

struct holder {
  int number = 0;
  resource content;
};

struct ready {
  bool await_ready() const noexcept { return true; }
  void await_suspend(std::coroutine_handle<>) const noexcept {}
  resource await_resume() const noexcept { return resource(1); }
};

struct routine {
  struct promise_type {
    routine get_return_object() const noexcept { return {}; }
    std::suspend_never initial_suspend() const noexcept { return {}; }
    std::suspend_never final_suspend() const noexcept { return {}; }
    void return_void() const noexcept {}
    void unhandled_exception() const noexcept {}
  };
};

routine braces() {
  const holder made{1, co_await ready()};  // weft-check-coroutines: fine
  static_cast<void>(made);
}

int main() {
  braces();
  return owners == 0 ? 0 : 1;
}
