// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/device/copy_engine.hpp>
#include <weft/mr/pool.hpp>
#include <weft/mr/system/background.hpp>
#include <weft/mr/system/persistence.hpp>
#include <weft/net/connection/connection_end.hpp>
#include <weft/net/connection/device_state.hpp>
#include <weft/net/connection/exposures.hpp>
#include <weft/net/connection/owner_service.hpp>
#include <weft/runtime/core/background.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/offload.hpp>
#include <weft/runtime/report.hpp>
#include <weft/runtime/with_timeout.hpp>

#include <fmt/core.h>

#include <chrono>
#include <new>
#include <utility>

namespace weft::net {

using mr::detail::copy_engine;
using mr::detail::copy_operation;
using mr::detail::owner_access;
using mr::detail::owner_key_use;
using mr::detail::owner_keys;
using weft::detail::make_error;

namespace {

// How long to wait for memory of a full pool. The wait delays the end of the connection.
constexpr std::chrono::milliseconds patience_for_pool{1000};

constexpr mr::usage of_lent_slots = mr::usage::write_dst | mr::usage::read_src;

void report_no_slots(const std::exception& why) noexcept try {
  const std::string text = fmt::format("staging memory for a peer's access to device memory: {}", why.what());
  send_report({.kind = report_kind::warning, .text = text});
} catch (const std::bad_alloc&) {
  send_report({.kind = report_kind::warning, .text = "out of staging memory for a peer's access to device memory"});
}

}  // namespace

// Memory of a device that the peer has shared, opened in this process. Copies in progress keep it open, even after an
// unshare. A worker closes it, because drivers block meanwhile.
class owner_service::shared_memory final : public mr::detail::background_job {
 public:
  shared_memory(std::shared_ptr<mr::memory_device> device, const mr::device_share& what, std::size_t bytes)
      : device_(std::move(device)), memory_(device_->open_share(what, bytes), bytes) {}
  ~shared_memory() override { close(); }
  void close() noexcept {
    if (!memory_.empty()) device_->close_share(std::exchange(memory_, {}).data());
  }
  void run() noexcept override {}  // a worker only has to delete this object

  [[nodiscard]] const mr::memory_device* device() const noexcept { return device_.get(); }
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return memory_; }

 private:
  std::shared_ptr<mr::memory_device> device_;
  std::span<std::byte> memory_;
};

void owner_service::closed_on_worker::operator()(shared_memory* last) const noexcept {
  mr::detail::run_on_worker(std::unique_ptr<mr::detail::background_job>(last));
}

// `make` makes the task, because there may be no memory for it either.
template <class Make>
void owner_service::begin(Make make) noexcept {
  ++serving_;
  try {
    run_in_background(state_.home, make(), "a request of the peer's for memory here");
  } catch (const std::bad_alloc&) {
    --serving_;
    state_.give_up(make_error(errc::no_memory, "serve the peer's request for memory of a device"));
  }
}

void owner_service::served() noexcept {
  --serving_;
  end_.advance();
}

bool owner_service::lend() noexcept {
  if (lending_ == slots_of_peer::refused) {
    lending_ = slots_of_peer::asked_again;
    return true;
  }
  if (lending_ != slots_of_peer::none) return false;
  lending_ = slots_of_peer::looked_for;
  begin([this] { return lend_to_peer(); });
  return true;
}

bool owner_service::asked(const owner_message& said) noexcept {
  service& mine = services_[said.slot];
  const bool needs_slot =
      !said.direct && (said.what == owner_message::verb::put || said.what == owner_message::verb::get);
  if (needs_slot && lending_ != slots_of_peer::lent) return false;
  if (mine.runs) {
    if (!mine.has_answered || mine.next) return false;
    mine.next = said;
    return true;
  }
  mine.runs = true;
  begin([this, &said] { return serve(said); });
  return true;
}

task<> owner_service::lend_to_peer() {
  const inside_call inside(state_);
  try {
    do {
      lending_ = slots_of_peer::looked_for;
      co_await answer_about_slots();
    } while (lending_ == slots_of_peer::asked_again);
  } catch (const std::bad_alloc&) {  // for the coroutine
    state_.give_up(make_error(errc::no_memory, "answer the peer's request"));
  }
  if (lending_ == slots_of_peer::refused) lending_ = slots_of_peer::none;
  served();
}

task<> owner_service::answer_about_slots() {
  owner_message answer{.what = owner_message::verb::memory};
  try {
    co_await messages_.prepare();
    co_await lend_slots();
    answer.region = lent_.remote();
    lending_ = slots_of_peer::lent;
  } catch (const std::exception& why) {  // an answer without a region reports the failure, but not why
    lending_ = slots_of_peer::refused;
    if (!state_.has_ended()) report_no_slots(why);
  }
  if (state_.is_silent()) co_return;
  try {
    if (messages_.are_prepared()) co_return co_await messages_.post(owner_messages::memory_place, answer);
  } catch (const std::exception&) {  // the connection has ended, or there is no memory for a coroutine
  }
  // Without an answer the peer would wait for ever.
  if (!state_.has_ended()) state_.give_up(make_error(errc::no_memory, "answer the peer's request"));
}

task<> owner_service::lend_slots() {
  constexpr std::size_t bytes = owner_message::slots * owner_message::slot_bytes;
  std::optional<error> why_not;
  try {
    lent_slots_ = co_await staging_memory::make(state_.device->domain(), bytes, mr::usage::bind_window);
    lent_ = co_await exposures::open(state_, state_.keys, lent_slots_.slice(), of_lent_slots, {});
  } catch (const error& why) {
    if (why.code() != errc::not_supported) throw;
    why_not = why;
  }
  if (why_not) {
    lent_slots_ = staging_memory();
    mr::buffer memory = co_await with_timeout(patience_for_pool, state_.device->pool().allocate(bytes));
    lent_ = co_await exposures::open(state_, state_.keys, std::move(memory), of_lent_slots, {});
  }
}

std::span<std::byte> owner_service::lent_slot(std::size_t slot) const noexcept {
  const std::span<std::byte> all = lent_slots_ ? lent_slots_.bytes() : lent_.memory().bytes();
  return all.subspan(slot * owner_message::slot_bytes, owner_message::slot_bytes);
}

// The part of the shared memory that the peer asks to copy. Empty if the peer has shared none on this device, or asks
// for more than it has shared.
std::span<std::byte> owner_service::part_of(const shared_memory* shared, const owner_message& asked,
                                            const mr::memory_device& device) noexcept {
  if (shared == nullptr || shared->device() != &device) return {};
  const std::span<std::byte> all = shared->bytes();
  const bool is_within = asked.shared_offset <= all.size() && asked.bytes <= all.size() - asked.shared_offset;
  return is_within ? all.subspan(static_cast<std::size_t>(asked.shared_offset), asked.bytes) : std::span<std::byte>();
}

task<> owner_service::serve(owner_message request) {
  const inside_call inside(state_);
  service& mine = services_[request.slot];
  for (std::optional<owner_message> next = request; next; next = std::exchange(mine.next, std::nullopt)) {
    mine.has_answered = false;
    owner_message answer{.what = owner_message::verb::answer, .slot = request.slot};
    try {
      co_await messages_.prepare();
      answer.status = co_await carry_out(*next);
      mine.has_answered = true;
      if (!state_.is_silent()) co_await messages_.post(owner_messages::answer_place(request.slot), answer);
    } catch (const std::exception&) {  // the connection has ended, or there is no memory for a coroutine
      if (!state_.has_ended()) state_.give_up(make_error(errc::no_memory, "answer the peer's request"));
    }
  }
  mine.runs = false;
  served();
}

task<owner_access> owner_service::carry_out(const owner_message& asked) {
  if (asked.what == owner_message::verb::unshare) {
    co_await close_share();
    co_return owner_access::done;
  }
  if (state_.closing) co_return owner_access::closing;
  if (asked.what == owner_message::verb::share) co_return co_await open_share(asked);
  if (asked.what == owner_message::verb::persist) co_return co_await persist(asked);
  co_return co_await copy_for_peer(asked);
}

// Opens memory that the peer shares. Requires a peer process on this machine, and memory of this end that is registered
// as `direct`, because a peer that frees memory it has shared may damage this end's use of the device.
task<owner_access> owner_service::open_share(const owner_message& asked) {
  if (!state_.properties().same_machine || asked.shared_bytes == 0) co_return owner_access::not_allowed;
  const std::shared_ptr<mr::memory_device> device = owner_keys::of_process().device_of(asked.key, true);
  if (device == nullptr) co_return owner_access::not_allowed;
  co_await close_share();
  try {
    const auto open = [&] { return std::make_unique<shared_memory>(device, asked.shared, asked.shared_bytes); };
    std::unique_ptr<shared_memory> opened = co_await weft::detail::offload_for_resources(open);
    shared_ = std::shared_ptr<shared_memory>(opened.release(), closed_on_worker());
  } catch (const error&) {
    co_return owner_access::device_failed;
  }
  co_return owner_access::done;
}

// Closes the memory that the peer has shared. If the peer breaks the rules and still has copies in progress, the last
// copy closes it.
task<> owner_service::close_share() {
  const std::shared_ptr<shared_memory> gone = std::move(shared_);
  if (gone.use_count() != 1) co_return;
  const auto close = [&gone]() noexcept { gone->close(); };
  co_await weft::detail::offload_for_resources(close);
}

owner_access owner_service::begin(const owner_message& asked, mr::usage purpose, owner_key_use& use) const noexcept {
  return owner_keys::of_process().begin({.key = asked.key,
                                         .offset = asked.offset,
                                         .bytes = asked.bytes,
                                         .purpose = purpose,
                                         .home = &state_.device->domain(),
                                         .connection = state_.number()},
                                        use);
}

// Checks the key after the write too: while a worker waits for the storage, the key may be closed, the memory unmapped,
// and other memory written in its place.
task<owner_access> owner_service::persist(const owner_message& asked) {
  owner_key_use use;
  if (const owner_access status = begin(asked, mr::usage::flush_persistent, use); status != owner_access::done)
    co_return status;
  const std::span<std::byte> memory = use.memory();
  const std::shared_ptr<mr::detail::storage> storage = use.record().region->storage;
  use.reset();
  bool is_written = false;
  const auto write = [&is_written, &storage, memory]() noexcept { is_written = storage->write(memory); };
  co_await offload(write);  // not on the workers that end regions and connections, because storage takes its time
  if (const owner_access status = begin(asked, mr::usage::flush_persistent, use); status != owner_access::done)
    co_return status;
  co_return is_written ? owner_access::done : owner_access::not_written;
}

task<owner_access> owner_service::copy_for_peer(const owner_message& asked) {
  const bool puts = asked.what == owner_message::verb::put;
  const mr::usage read_for = asked.flushes ? mr::usage::flush_visibility : mr::usage::read_src;
  const std::shared_ptr<mr::memory_device> device = owner_keys::of_process().device_of(asked.key);
  if (device == nullptr) co_return owner_access::no_such_key;
  try {
    copy_engine& engine = *co_await copy_engine::of(device);
    const copy_engine::user polled(engine);
    if (lent_slots_ && !asked.direct) co_await lent_slots_.pin_for(device);
    const std::shared_ptr<shared_memory> shared = asked.direct ? shared_ : nullptr;
    const std::span<std::byte> other = asked.direct ? part_of(shared.get(), asked, *device) : lent_slot(asked.slot);
    if (other.empty()) co_return owner_access::not_allowed;
    std::byte* const slot = other.data();
    owner_key_use use;
    const owner_access status = begin(asked, puts ? mr::usage::write_dst : read_for, use);
    if (status != owner_access::done) co_return status;
    if (device->find(use.memory()).id != use.record().allocation) co_return owner_access::device_failed;
    std::byte* const there = use.memory().data();
    // This coroutine must not suspend before the device has the copy, because closing the key relies on that.
    copy_operation copy(puts && !asked.direct ? engine.in() : engine.out(), puts ? there : slot, puts ? slot : there,
                        asked.bytes, std::move(use));
    co_await copy;
  } catch (const error&) {
    co_return owner_access::device_failed;
  }
  co_return owner_access::done;
}

}  // namespace weft::net
