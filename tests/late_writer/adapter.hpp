// SPDX-License-Identifier: Apache-2.0
// What the search for late writes (main.cpp) asks of an RDMA library.
#pragma once

#include <type_traits>

#include "kit/standard.hpp"

namespace late_writer {

/// What brings the peer's bytes into the owner's memory.
enum class operation : std::uint8_t {
  put,      ///< the peer writes, again and again, into memory that the owner has opened to it
  receive,  ///< the peer sends one message, for which the owner has posted a receive
  get,      ///< the owner reads memory of the peer's
};

/// When the owner takes its memory back.
enum class moment : std::uint8_t {
  before,  ///< before any byte has come
  during,  ///< as soon as the first byte has come
};

/// What the library's documentation says of writes after the sign.
enum class documented : std::uint8_t {
  excluded,  ///< the operation has ended, or the peer cannot reach the memory any more
  unsaid,    ///< neither that they may come nor that they cannot
  allowed,   ///< they may come: the program has to make sure by itself that nobody writes
};

/// A way to take memory back, up to the sign that the library gives.
struct way {
  operation what = operation::put;
  moment when = moment::during;
  std::string_view sign;  ///< "ibv_dereg_mr() returned 0"
  documented late = documented::unsaid;
  std::string_view source;         ///< where the documentation says so: "ibv_reg_mr(3)"
  bool begins_in_give_up = false;  ///< give_up() itself begins the operation, and waits for the moment
};

/// What came of taking memory back.
enum class outcome : std::uint8_t {
  told,       ///< the library has given the sign
  completed,  ///< the operation had already ended successfully, so that the memory is free without the sign
  untold,     ///< neither happened within a second
};

/// What one process does in one try.
struct part {
  bool is_owner = false;
  way how;
  std::span<std::byte> memory;  ///< the owner's, which is watched later, or the peer's, full of bytes to write

  [[nodiscard]] bool is(operation what) const noexcept { return how.what == what; }
  /// Whether this end opens its memory to the other one.
  [[nodiscard]] bool lends() const noexcept { return is(operation::put) ? is_owner : is(operation::get) && !is_owner; }
};

/// One end of a connection, in a process of its own, for one try. In this order:
///
///     owner                                      peer
///     describe()    <- the harness exchanges ->  describe()
///     meet()                                     meet()
///     turn(), until the moment has come          turn(), which puts or sends
///     give_up()                                  turn()
///     turn(), while its memory is watched        turn()
///     turn(), until the peer is gone             destroyed
///     destroyed
///
/// A failure is a std::runtime_error. Once the owner has given up, a peer that fails just stops writing.
class end : protected part {
 public:
  explicit end(const part& mine) : part(mine) {}
  end(const end&) = delete;
  end& operator=(const end&) = delete;
  virtual ~end() = default;

  /// Makes the endpoint, opens the memory of a lender, posts the owner's receive, and says how to reach all that.
  virtual std::string describe() = 0;
  /// Connects, or begins to. The owner begins its get.
  virtual void meet(const std::string& described) = 0;
  /// Makes progress without waiting.
  virtual void turn() = 0;
  /// Takes the owner's memory back, and makes progress until the library has given the sign.
  virtual outcome give_up() = 0;

 protected:
  /// Makes progress until `is_done()`, but for a second at most. Returns whether it is.
  template <class Condition>
  bool turn_until(Condition is_done) {
    const auto latest = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    while (!is_done()) {
      if (std::chrono::steady_clock::now() >= latest) return false;
      turn();
    }
    return true;
  }
};

struct library {
  std::string name;
  std::string version;
  std::vector<std::string> transports;  ///< those that this machine has
  std::span<const way> ways;
  /// Makes an end for one try; what is costly to make stays for the next try of the process. The harness forks once for
  /// each way on each transport, and calls this only in the children.
  std::function<std::unique_ptr<end>(const std::string& transport, const part& mine)> open;
};

library verbs();
library ucx();
library libfabric();
library weft_itself();

/// What an owner's memory holds before the first byte comes.
constexpr std::byte untouched{0};

inline bool has_begun(std::span<const std::byte> memory) noexcept {
  return static_cast<const volatile std::byte&>(memory.front()) != untouched;
}

inline void check(bool is_well, std::string_view call, std::string_view why = "failed") {
  if (!is_well) throw std::runtime_error(std::string(call) + ": " + std::string(why));
}

/// Writes a description: values, and bytes behind their number.
class writer {
 public:
  template <class T>
    requires std::is_trivially_copyable_v<T>
  writer& add(const T& value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  writer& add_bytes(const void* bytes, std::size_t size) {
    add(size);
    text_.append(static_cast<const char*>(bytes), size);
    return *this;
  }
  [[nodiscard]] const std::string& text() const noexcept { return text_; }

 private:
  std::string text_;
};

/// Takes a description apart. It was written by the same program.
class reader {
 public:
  explicit reader(std::string_view text) noexcept : rest_(text) {}
  template <class T>
  T take() {
    T value;
    std::memcpy(&value, cut(sizeof(value)).data(), sizeof(value));
    return value;
  }
  std::string take_bytes() { return std::string(cut(take<std::size_t>())); }

 private:
  std::string_view cut(std::size_t size) {
    check(rest_.size() >= size, "a description", "is cut off");
    const std::string_view front = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return front;
  }
  std::string_view rest_;
};

}  // namespace late_writer
