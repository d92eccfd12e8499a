// SPDX-License-Identifier: Apache-2.0
#include <weft/mr/porting/pending_region.hpp>
#include <weft/mr/porting/submission.hpp>

namespace weft::mr::porting {

pending_region::~pending_region() {
  if (submission_ != nullptr) submission_->abandon();
}

bool pending_region::is_complete() const noexcept { return submission_->is_complete(); }

std::uint64_t pending_region::key() const { return submission_->key(); }

pending_region detail::submit(domain& home, std::unique_ptr<mr::detail::region_state> state,
                              const registration_options& options, event_queue& queue, void* context) {
  home.prepare(*state, options);
  auto submitted = std::make_shared<submission>(std::move(state), options, queue.core(), context);
  submission::start(submitted);
  return pending_region(std::move(submitted));
}

pending_region submit(domain& home, std::span<std::byte> memory, registration_options options, event_queue& queue,
                      void* context) {
  return detail::submit(home, home.borrow(memory), options, queue, context);
}

pending_region submit(domain& home, std::span<const std::span<std::byte>> ranges, registration_options options,
                      event_queue& queue, void* context) {
  return detail::submit(home, home.borrow(ranges, options), options, queue, context);
}

}  // namespace weft::mr::porting
