// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/cuda/cuda_stream.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <new>
#include <utility>

namespace weft::mr::cuda {
namespace {

constexpr std::size_t first_events = 8;

// Runs on a thread of the driver, perhaps after the stream object was destroyed. So its parameter is no pointer, but
// the number of the descriptor itself. The write cannot block, because nobody queues 2^64 - 1 notifications.
void add_one(void* descriptor) noexcept {
  constexpr std::uint64_t one = 1;
  const auto event = static_cast<int>(reinterpret_cast<std::intptr_t>(descriptor));
  static_cast<void>(!::write(event, &one, sizeof one));
}

void add_one_and_close(void* descriptor) noexcept {
  add_one(descriptor);
  ::close(static_cast<int>(reinterpret_cast<std::intptr_t>(descriptor)));
}

device_address address_of(const std::byte* memory) noexcept { return reinterpret_cast<std::uintptr_t>(memory); }

}  // namespace

cuda_stream::cuda_stream(std::shared_ptr<const primary_context> context)
    : context_(std::move(context)), driver_(context_->functions()), owned_(true), events_(first_events) {
  const current_context here = context_->enter();
  context_->check(here.code(), "open a stream");
  context_->check(driver_.stream_create(&stream_, stream_non_blocking), "open a stream");
}

cuda_stream::cuda_stream(std::shared_ptr<const primary_context> context, stream_handle borrowed)
    : context_(std::move(context)),
      driver_(context_->functions()),
      stream_(borrowed),
      owned_(false),
      events_(first_events) {
  const current_context here = context_->enter();
  context_->check(here.code(), "use a stream of the program");
  const status state = driver_.stream_query(stream_);
  if (state != status::not_ready) context_->check(state, "use a stream of the program");
  context_handle owner = nullptr;
  context_->check(driver_.stream_get_ctx(stream_, &owner), "use a stream of the program");
  if (owner == context_->handle()) return;
  context_->refuse(errc::wrong_device, "use a stream of the program",
                   "it belongs to another GPU, or to another context than the primary one");
}

cuda_stream::~cuda_stream() {
  const current_context here = context_->enter();
  if (!here) return;  // the stream and its events were destroyed with the context
  if (!failed_ && !all_done()) wait_for_device();
  // An event may be destroyed before the device reaches it.
  for (auto* event : events_) {
    if (event != nullptr) static_cast<void>(driver_.event_destroy(event));
  }
  if (owned_) static_cast<void>(driver_.stream_destroy(stream_));
}

result<void> cuda_stream::copy(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  if (failed_) return *failed_;
  const current_context here = context_->enter();
  if (!here) return fail(context_->failure(here.code(), "copy"));
  const status code = driver_.memcpy_async(address_of(to), address_of(from), bytes, stream_);
  if (code == status::success) {
    unmarked_ = true;
    return {};
  }
  error failure = context_->failure(code, "copy");
  // Either the driver refuses this copy, or it reports that an earlier one has failed: the stream's state tells which.
  const status alive = driver_.stream_query(stream_);
  if (alive == status::success || alive == status::not_ready) return failure;
  return fail(std::move(failure));
}

result<std::uint64_t> cuda_stream::mark() noexcept {
  if (failed_) return *failed_;
  const current_context here = context_->enter();
  if (!here) return fail(context_->failure(here.code(), "record an event behind the copies"));
  try {
    if (made_ - reached_ == events_.size()) make_room();
  } catch (const std::bad_alloc&) {
    wait_for_device();
    return weft::detail::make_error(errc::no_memory, "record an event behind the copies");
  }
  const status code = record(made_ + 1);
  if (code == status::out_of_memory) {  // there may be memory the next time
    wait_for_device();
    return context_->failure(code, "record an event behind the copies");
  }
  if (code != status::success) return fail(context_->failure(code, "record an event behind the copies"));
  ++made_;
  unmarked_ = false;
  return made_;
}

result<std::uint64_t> cuda_stream::reached() noexcept {
  if (failed_) return *failed_;
  if (made_ == reached_) return reached_;
  const current_context here = context_->enter();
  if (!here) return fail(context_->failure(here.code(), "query the progress of copies"));
  while (reached_ != made_) {
    const status code = driver_.event_query(event_of(reached_ + 1));
    if (code == status::not_ready) break;
    if (code != status::success) return fail(context_->failure(code, "query the progress of copies"));
    ++reached_;
  }
  return reached_;
}

bool cuda_stream::notify(int event) noexcept {
  if (failed_) return false;
  const current_context here = context_->enter();
  if (!here) return false;
  const int target = owned_ ? event : ::fcntl(event, F_DUPFD_CLOEXEC, 0);
  if (target < 0) return false;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): see add_one()
  void* const descriptor = reinterpret_cast<void*>(static_cast<std::intptr_t>(target));
  if (driver_.launch_host_func(stream_, owned_ ? &add_one : &add_one_and_close, descriptor) != status::success) {
    if (!owned_) ::close(target);
    return false;
  }
  unmarked_ = true;
  return true;
}

void cuda_stream::synchronize() noexcept {
  if (!failed_) wait_for_device();
}

// Doubles the room when all events are in use, and moves each event to the new place of its mark.
void cuda_stream::make_room() {
  std::vector<event_handle> larger(2 * events_.size());
  for (std::uint64_t mark = reached_ + 1; mark <= made_; ++mark) larger[mark % larger.size()] = event_of(mark);
  events_ = std::move(larger);
}

status cuda_stream::record(std::uint64_t mark) noexcept {
  event_handle& event = event_of(mark);
  if (event == nullptr) {
    const status made = driver_.event_create(&event, event_disable_timing);
    if (made != status::success) return made;
  }
  return driver_.event_record(event, stream_);
}

// An error of stream_synchronize() is that of an earlier copy: the device has given up, and touches no memory any more.
// In case the call itself has failed instead, ctx_synchronize() waits at least as long. A context that is gone has
// ended all copies.
void cuda_stream::wait_for_device() noexcept {
  if (!owned_) return;  // no copy of weft's is there, and the program may have destroyed the stream
  const current_context here = context_->enter();
  if (!here) return;
  if (driver_.stream_synchronize(stream_) == status::success) return;
  static_cast<void>(driver_.ctx_synchronize());
}

error cuda_stream::fail(error failure) noexcept {
  wait_for_device();
  failed_.emplace(std::move(failure));
  return *failed_;
}

}  // namespace weft::mr::cuda
