// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/runtime/core/executor_core.hpp>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "keys.hpp"

namespace weft::toy {

/// Items that one thread pushes and another pops; of a fixed size. Whoever pushes knows that there is room.
template <class T>
class ring {
 public:
  explicit ring(std::size_t most) : items_(most + 1) {}
  void push(const T& item) noexcept {
    const std::size_t end = end_.load(std::memory_order_relaxed);
    items_[end] = item;
    end_.store((end + 1) % items_.size());
  }
  /// The oldest; null if there is none.
  [[nodiscard]] T* front() noexcept {
    const std::size_t begin = begin_.load(std::memory_order_relaxed);
    return begin == end_.load() ? nullptr : &items_[begin];
  }
  void pop() noexcept { begin_.store((begin_.load(std::memory_order_relaxed) + 1) % items_.size()); }

 private:
  std::vector<T> items_;
  std::atomic<std::size_t> begin_{0};
  std::atomic<std::size_t> end_{0};
};

/// A message that lies in a receive.
struct message_in {
  net::receive_work* work = nullptr;
  net::arrival what{};
};

/// How far an end has come, as the other one sees it.
enum class progress : std::uint8_t {
  open,
  finished,  ///< it sends no more
  closed,    ///< likewise, and it lets nobody in
  broken,    ///< it has ended: end::why
};

/// What the other end sees of an end. Both belong to a `wire`, which the links share.
struct end {
  end(std::shared_ptr<domain> where, std::size_t receives);

  const std::shared_ptr<domain> memory;
  const end_id id;
  ring<net::receive_work*> posted;   ///< filled by this end, taken by the other
  ring<message_in> arrived;          ///< filled by the other, taken by this end
  std::atomic<bool> starved{false};  ///< the other end waits for a receive
  /// This end is about to touch the other's memory, or is at it. It looks at the other's progress after it has set
  /// this; an end that closes sets its progress and then waits for this.
  std::atomic<bool> inside{false};
  std::atomic<progress> state{progress::open};
  // Of an end that is broken; written before.
  errc why{};
  std::array<char, 120> words{};

  /// The bell of this end. Who moves it from idle to rung submits it; the link itself shuts it, and withdraws it if it
  /// was rung. So nobody submits it after that, and its executor may go.
  enum class bell_state : std::uint8_t { idle, rung, shut };
  std::atomic<bell_state> bell{bell_state::shut};
  executor_core* home = nullptr;              // before the bell is first idle or rung
  weft::detail::remote_work* link = nullptr;  // likewise
  /// From either end's thread.
  void ring_bell() noexcept;
  /// So that the other end hears that this one is gone, and why.
  void break_off(errc code, std::string_view reason) noexcept;
};

/// A connection: the end that has connected and the one that has accepted.
struct wire {
  wire(std::shared_ptr<domain> a, std::size_t receives_of_a, std::shared_ptr<domain> b, std::size_t receives_of_b)
      : ends{end(std::move(a), receives_of_a), end(std::move(b), receives_of_b)} {}
  std::array<end, 2> ends;
  std::array<std::uint16_t, 2> outgoing_reads{};
};

/// One end of a wire.
///
/// post() lines requests up. The bell rings (ring(), or the other end's), and in its turn on the executor the link
/// delivers what has arrived, executes what it can, in order, and looks whether there is an end. Large requests go in
/// pieces, so that others have their turn.
class link final : public net::link, private weft::detail::remote_work {
 public:
  link(std::shared_ptr<wire> both, std::size_t which, std::string peer);
  ~link() override;

  [[nodiscard]] const net::capabilities& properties() const noexcept override { return capabilities_; }
  [[nodiscard]] std::string_view peer() const noexcept override { return peer_; }
  void start(net::link_events& events, const net::link_parameters& parameters) override;
  [[nodiscard]] std::size_t corner_bytes() const noexcept override { return sizeof(posted_request); }
  [[nodiscard]] bool furnish(net::work_request& work) noexcept override;
  void post(net::work_request& work) noexcept override;
  void post_receive(net::receive_work& work) noexcept override;
  void ring() noexcept override { mine_.ring_bell(); }
  void shut_down() noexcept override;
  void abort(std::string_view why) noexcept override;
  void refuse(violation what, std::string_view why) noexcept override;
  [[nodiscard]] task<net::exposed_place> expose(mr::slice memory, mr::usage uses, mr::detail::peer_gate* gate) override;
  void revoke(std::uint64_t key, net::revocation& who) noexcept override;

 private:
  // The corner of a request.
  struct posted_request {
    net::work_request* work;
    posted_request* next;
  };
  // One entry from outside. The end waits for the outermost to be over, because closed() may destroy the link.
  class turn {
   public:
    explicit turn(link& owner) noexcept : owner_(owner) { ++owner_.depth_; }
    turn(const turn&) = delete;
    turn& operator=(const turn&) = delete;
    ~turn() {
      if (--owner_.depth_ == 0) owner_.settle();
    }

   private:
    link& owner_;
  };
  enum class outcome : std::uint8_t { done, unfinished, waits, refused, too_long };

  void run_on_executor() noexcept override;
  void deliver() noexcept;
  void execute_requests() noexcept;
  void look_for_the_end() noexcept;
  [[nodiscard]] outcome execute(net::work_request& work) noexcept;
  [[nodiscard]] outcome step(net::work_request& work) noexcept;
  [[nodiscard]] outcome send(net::work_request& work) noexcept;
  [[nodiscard]] outcome write(net::work_request& work) noexcept;
  [[nodiscard]] outcome read(net::work_request& work) noexcept;
  [[nodiscard]] outcome change(net::work_request& work) noexcept;
  [[nodiscard]] outcome copy(net::work_request& work, std::uint64_t bytes, mr::access right) noexcept;
  [[nodiscard]] net::receive_work* find_receive() noexcept;
  void give(net::receive_work& work, const net::arrival& what) noexcept;
  void finish_oldest(net::work_status status) noexcept;
  void end_because(const error& why, errc for_peer, std::string_view words_for_peer) noexcept;
  void settle() noexcept;
  void close() noexcept;

  executor_core& home_;
  const std::shared_ptr<wire> wire_;
  end& mine_;
  end& theirs_;
  std::string peer_;
  net::capabilities capabilities_;
  net::link_events* events_ = nullptr;
  posted_request* first_ = nullptr;
  posted_request* last_ = nullptr;
  std::uint64_t bytes_done_ = 0;  // of the first
  std::vector<std::uint32_t> exposed_;
  unsigned depth_ = 0;
  bool counts_ = true;  // at the other end, what it writes there
  bool shutting_down_ = false;
  bool ended_ = false;
  bool broken_ = false;  // do not wait for the other end
  bool closed_ = false;
};

}  // namespace weft::toy
