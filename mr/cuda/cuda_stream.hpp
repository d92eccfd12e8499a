// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/cuda/driver.hpp>
#include <weft/mr/cuda/primary_context.hpp>
#include <weft/mr/device_memory.hpp>
#include <weft/runtime/error.hpp>
#include <weft/runtime/result.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace weft::mr::cuda {

/// A CUstream, of weft's own or the program's.
///
/// Each mark is a CUevent that is recorded in the stream. Events are made when needed and used again, so a stream soon
/// allocates nothing. If a call of the driver fails and leaves unknown what the device still does, the stream waits for
/// the device, and has then failed for good. If there is no memory for a mark, it waits for the device as well, but can
/// still be used.
class cuda_stream final : public copy_stream {
 public:
  /// A new stream, which the destructor destroys. It and the default stream do not wait for each other.
  explicit cuda_stream(std::shared_ptr<const primary_context> context);
  /// The program's stream: null is the context's default stream. Throws errc::wrong_device for a stream of another
  /// context. Nothing waits for the program's work, and the destructor does not use the stream.
  cuda_stream(std::shared_ptr<const primary_context> context, stream_handle borrowed);
  ~cuda_stream() override;

  [[nodiscard]] result<void> copy(std::byte* to, const std::byte* from, std::size_t bytes) noexcept override;
  [[nodiscard]] result<std::uint64_t> mark() noexcept override;
  [[nodiscard]] result<std::uint64_t> reached() noexcept override;
  /// The driver's thread writes to the descriptor, which the caller must therefore keep open until a mark made
  /// afterwards has been reached, or synchronize() or the destructor has returned. For the program's stream it writes
  /// to a copy of the descriptor instead, and closes that.
  [[nodiscard]] bool notify(int event) noexcept override;
  void synchronize() noexcept override;

 private:
  [[nodiscard]] event_handle& event_of(std::uint64_t mark) noexcept { return events_[mark % events_.size()]; }
  [[nodiscard]] bool all_done() const noexcept { return !unmarked_ && made_ == reached_; }
  void make_room();
  [[nodiscard]] status record(std::uint64_t mark) noexcept;
  void wait_for_device() noexcept;
  error fail(error failure) noexcept;

  std::shared_ptr<const primary_context> context_;
  const driver& driver_;
  stream_handle stream_ = nullptr;
  bool owned_;
  // The event of mark m is at m modulo the size. The events of the marks in (reached_, made_] are in use; null: not
  // created yet.
  std::vector<event_handle> events_;
  std::uint64_t made_ = 0;
  std::uint64_t reached_ = 0;
  bool unmarked_ = false;  // something was queued after the last mark
  std::optional<error> failed_;
};

}  // namespace weft::mr::cuda
