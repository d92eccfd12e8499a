// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/device/copy_engine.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/offload.hpp>
#include <weft/runtime/system/system_calls.hpp>

#include <fmt/core.h>

#include <sys/eventfd.h>

#include <cassert>
#include <utility>

namespace weft::mr::detail {
namespace {

descriptor make_event() {
  system_calls& calls = system_calls::kernel();
  const int fd = calls.eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) throw system_error(-fd, "create an eventfd");
  return descriptor(fd, calls);
}

}  // namespace

// ---- an operation ----

std::string lane_operation::describe() const { return fmt::format("a copy by {}", lane_->engine_.device().name()); }

void lane_operation::leave() noexcept {
  if (!waiting() || !begun() || std::exchange(has_left_, true)) return;
  if (lane_->whose_ == copy_lane::owner::engine) lane_->stream_->synchronize();
  lane_->forget(*this);
}

void lane_operation::begin() { lane_->start(*this); }

void lane_operation::throw_failure() const {
  if (failure_) throw *failure_;
  throw error(errc::canceled, fmt::format("{}: stopped before it began", describe()));
}

// ---- a stream ----

copy_lane::copy_lane(copy_engine& engine, std::unique_ptr<copy_stream> stream, owner whose) noexcept
    : engine_(engine), stream_(std::move(stream)), whose_(whose), next_(std::exchange(engine.lanes_, this)) {}

copy_lane::~copy_lane() {
  assert(first_ == nullptr && "a stream ended before the copies on it");
  copy_lane** place = &engine_.lanes_;
  while (*place != this) place = &(*place)->next_;
  *place = next_;
}

void copy_lane::start(lane_operation& item) noexcept {
  result<std::uint64_t> marked = 0;
  if (const result<void> queued = item.queue(*stream_); queued) {
    marked = stream_->mark();
    if (!marked) stream_->synchronize();  // the queued copy has no mark to wait for
  } else {
    marked = queued.error();
  }
  if (!marked) {
    item.failure_ = marked.error();
    return item.end();
  }
  item.mark_ = *marked;
  item.next_ = nullptr;
  (last_ != nullptr ? last_->next_ : first_) = &item;
  last_ = &item;
}

std::size_t copy_lane::poll(std::size_t budget) noexcept {
  if (first_ == nullptr) return 0;
  const result<std::uint64_t> reached = stream_->reached();
  std::size_t ended = 0;
  while (first_ != nullptr && ended < budget && (!reached || first_->mark_ <= *reached)) {
    lane_operation& item = *first_;
    forget(item);
    if (!reached) item.failure_ = reached.error();
    item.end();
    ++ended;
  }
  return ended;
}

void copy_lane::forget(lane_operation& item) noexcept {
  lane_operation* before = nullptr;
  for (lane_operation* each = first_; each != &item; each = each->next_) before = each;
  (before != nullptr ? before->next_ : first_) = item.next_;
  if (last_ == &item) last_ = before;
}

// Ensures a notification while anything is queued. False if there will be none: the executor must not sleep.
bool copy_lane::arm(int event) noexcept {
  if (first_ == nullptr || told_of_ >= first_->mark_) return true;
  if (!stream_->notify(event)) return false;
  told_of_ = last_->mark_;
  return true;
}

void copy_lane::settle() noexcept {
  if (first_ == nullptr || whose_ == owner::program) return;
  stream_->synchronize();
  while (first_ != nullptr) {
    if (poll(SIZE_MAX) == 0) stream_->synchronize();
  }
}

// ---- the engine ----

copy_engine::copy_engine(executor_core& home, std::shared_ptr<memory_device> device, std::unique_ptr<copy_stream> in,
                         std::unique_ptr<copy_stream> out, descriptor event)
    : home_(home),
      device_(std::move(device)),
      event_(std::move(event)),
      in_(*this, std::move(in), copy_lane::owner::engine),
      out_(*this, std::move(out), copy_lane::owner::engine) {}

task<copy_engine*> copy_engine::of(std::shared_ptr<memory_device> device) {
  executor_core& running = *executor_core::current();
  const void* const key = device.get();
  if (auto* found = running.find_attachment(key)) co_return static_cast<copy_engine*>(found);
  const auto make = [&running, &device] {
    auto in = device->open_stream();
    auto out = device->open_stream();
    return std::make_unique<copy_engine>(running, device, std::move(in), std::move(out), make_event());
  };
  auto made = co_await weft::detail::offload_for_resources(make);
  if (auto* found = running.find_attachment(key))
    co_return static_cast<copy_engine*>(found);  // another task was faster
  co_return static_cast<copy_engine*>(&running.attach(key, std::move(made)));
}

void copy_engine::close_key(std::uint64_t key) noexcept {
  if (key == 0) return;
  owner_keys& keys = owner_keys::of_process();
  if (keys.begin_to_close(key)) {
    // Finishes all copies of this thread first: close() waits for another thread, which may wait for one of them.
    for (auto each = keys.next_in_use(nullptr); each != nullptr; each = keys.next_in_use(each.get())) {
      settle_this_thread(*each);
    }
  }
  keys.close(key);
}

void copy_engine::settle_this_thread(memory_device& device) noexcept {
  executor_core* const running = executor_core::current();
  if (running == nullptr) return;
  auto* const found = static_cast<copy_engine*>(running->find_attachment(&device));
  if (found == nullptr) return;
  for (copy_lane* each = found->lanes_; each != nullptr; each = each->next_) each->settle();
}

std::size_t copy_engine::poll(std::size_t budget) noexcept {
  std::size_t ended = 0;
  for (copy_lane* each = lanes_; each != nullptr && ended < budget; each = each->next_) {
    ended += each->poll(budget - ended);
  }
  return ended;
}

void copy_engine::arm() noexcept {
  bool may_sleep = true;
  for (copy_lane* each = lanes_; each != nullptr; each = each->next_) may_sleep = each->arm(event_.fd()) && may_sleep;
  if (!may_sleep) static_cast<void>(::eventfd_write(event_.fd(), 1));
}

void copy_engine::disarm() noexcept {
  eventfd_t told = 0;
  static_cast<void>(::eventfd_read(event_.fd(), &told));
}

}  // namespace weft::mr::detail
