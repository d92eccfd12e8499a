// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include <nvme/request.hpp>

namespace nvme {

request::request(weft::net::message capsule, weft::net::connection& peer, weft::mr::pool& pool,
                 std::chrono::milliseconds transfer_timeout)
    : capsule_(std::move(capsule)),
      peer_(peer),
      pool_(pool),
      transfer_timeout_(transfer_timeout),
      asked_(decode_command(capsule_.bytes())) {}

// Linux describes no data by a key of 0 and no bytes.
status request::check_no_data() const noexcept {
  if (!asked_.data.is_keyed() && !is_in_capsule()) return status::sgl_type_invalid;
  return asked_.data.length == 0 ? status::success : status::sgl_data_length_invalid;
}

status request::check_to_host(std::uint64_t bytes) const noexcept {
  const sgl& data = asked_.data;
  if (!data.is_keyed()) return status::sgl_type_invalid;
  if (data.length != bytes) return status::sgl_data_length_invalid;
  const bool wraps = data.address > std::numeric_limits<std::uint64_t>::max() - data.length;
  return wraps ? status::sgl_offset_invalid : status::success;
}

status request::check_from_host(std::uint64_t bytes) const noexcept {
  if (!is_in_capsule()) return check_to_host(bytes);
  const sgl& data = asked_.data;
  if (data.length != bytes) return status::sgl_data_length_invalid;
  const std::uint64_t there = capsule_.size() - command_bytes;
  if (data.address > there || data.length > there - data.address) return status::sgl_offset_invalid;
  return status::success;
}

weft::task<std::span<const std::byte>> request::from_host(std::uint64_t bytes, weft::mr::buffer& room) {
  const sgl& data = asked_.data;
  if (is_in_capsule()) co_return capsule_.bytes().subspan(command_bytes + data.address, data.length);
  room = co_await pool_.allocate(bytes);
  const weft::mr::remote_slice source(data.key, data.address, bytes, weft::mr::usage::read_src);
  co_await weft::with_timeout(transfer_timeout_, peer_.read(room, source));
  co_return room.bytes();
}

}  // namespace nvme
