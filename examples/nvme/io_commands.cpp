// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <system_error>
#include <vector>

#include <nvme/io_commands.hpp>

namespace nvme {

using weft::task;

namespace {

/// A disk has failed, and not the connection.
class disk_failure : public std::exception {
 public:
  disk_failure(nvme::status what, std::string words) : status_(what), words_(std::move(words)) {}
  [[nodiscard]] const char* what() const noexcept override { return words_.c_str(); }
  [[nodiscard]] nvme::status status() const noexcept { return status_; }

 private:
  nvme::status status_;
  std::string words_;
};

task<outcome> refuse(status why) { co_return why; }

// What is done on a disk: its failures are told from those of the connection by being a disk_failure.
task<> on_disk(task<> work, bool writing) {
  try {
    co_await std::move(work);
  } catch (const std::exception& why) {
    const auto* const known = dynamic_cast<const weft::error*>(&why);
    if (known != nullptr && known->code() == weft::errc::canceled) throw;
    throw disk_failure(status_of(why, writing), why.what());
  }
}

}  // namespace

status status_of(const std::exception& failure, bool writing) noexcept {
  const auto* const known = dynamic_cast<const std::system_error*>(&failure);
  if (known == nullptr) return status::internal_error;
  const std::error_code code = known->code();
  const auto is = [&](std::errc what) { return code == what; };
  if (is(std::errc::no_space_on_device) || is(std::errc::file_too_large) ||
      code == std::error_code(EDQUOT, std::system_category()))
    return status::capacity_exceeded;
  if (is(std::errc::read_only_file_system) || is(std::errc::operation_not_permitted) ||
      is(std::errc::permission_denied) || is(std::errc::bad_file_descriptor))
    return writing ? status::namespace_write_protected : status::access_denied;
  if (is(std::errc::not_enough_memory) || is(std::errc::resource_unavailable_try_again) ||
      is(std::errc::no_buffer_space))
    return status::internal_error;  // which the host may try again
  if (code.category() == std::system_category() || code.category() == std::generic_category())
    return writing ? status::write_fault : status::unrecovered_read_error;
  return status::internal_error;
}

task<outcome> io_commands::execute(request& what) {
  const command& asked = what.asked();
  std::string trouble;
  status failed = status::success;
  try {
    outcome done = co_await try_to(what);
    co_return std::move(done);
  } catch (const disk_failure& why) {
    trouble = why.what();
    failed = why.status();
  }
  // A disk that is broken breaks every command: the first, second, fourth and so on are told.
  if (std::has_single_bit(++failures_)) {
    home_.say(fmt::format("{} for {} failed: {}: {}; failure {} on its queue", describe(asked, false),
                          controller_.from().host, trouble, words_of(failed), failures_));
  }
  co_return failed;
}

task<outcome> io_commands::try_to(request& what) {
  switch (static_cast<io_opcode>(what.asked().opcode)) {
    case io_opcode::read:
      return read(what);
    case io_opcode::write:
      return write(what);
    case io_opcode::flush:
      return flush(what);
    case io_opcode::write_zeroes:
      return write_zeroes(what);
    case io_opcode::dataset_management:
      return manage(what);
  }
  return refuse(status::invalid_opcode);
}

// Hostile numbers end here.
status io_commands::find_blocks(const command& asked, blocks& found) const noexcept {
  found.of = controller_.from().of->find(asked.nsid);
  if (found.of == nullptr) return status::invalid_namespace;
  const auto where = fields_of<block_fields>(asked);
  if (where.protection != 0) return status::invalid_field;  // there is no metadata
  if (!found.of->has(where.first, where.count)) return status::lba_out_of_range;
  found.offset = where.first << found.of->block_shift();
  found.bytes = std::uint64_t{where.count} << found.of->block_shift();
  return status::success;
}

status io_commands::find_writable(const command& asked, blocks& found) const noexcept {
  const status wrong = find_blocks(asked, found);
  if (wrong != status::success) return wrong;
  return found.of->disk().read_only() ? status::namespace_write_protected : status::success;
}

task<outcome> io_commands::read(request& what) {
  blocks where;
  if (const status wrong = find_blocks(what.asked(), where); wrong != status::success) co_return wrong;
  if (where.bytes > home_.most().max_transfer_bytes()) co_return status::invalid_field;
  if (const status wrong = what.check_to_host(where.bytes); wrong != status::success) co_return wrong;
  auto data = co_await what.room_for(where.bytes);
  co_await on_disk(where.of->disk().read(where.offset, data.bytes()), false);
  ++done_.reads;
  done_.bytes_read += where.bytes;
  co_return outcome(std::move(data));
}

task<> io_commands::make_durable(nvme::disk& what, const block_fields& how) {
  if (!how.force_unit_access) co_return;
  co_await on_disk(what.flush(), true);
}

task<outcome> io_commands::write(request& what) {
  blocks where;
  if (const status wrong = find_writable(what.asked(), where); wrong != status::success) co_return wrong;
  if (where.bytes > home_.most().max_transfer_bytes()) co_return status::invalid_field;
  if (const status wrong = what.check_from_host(where.bytes); wrong != status::success) co_return wrong;
  weft::mr::buffer room;
  const auto data = co_await what.from_host(where.bytes, room);
  nvme::disk& disk = where.of->disk();
  co_await on_disk(disk.write(where.offset, data), true);
  co_await make_durable(disk, fields_of<block_fields>(what.asked()));
  ++done_.writes;
  done_.bytes_written += where.bytes;
  if (what.is_in_capsule()) ++done_.in_capsule;
  co_return status::success;
}

task<outcome> io_commands::write_zeroes(request& what) {
  blocks where;
  if (const status wrong = find_writable(what.asked(), where); wrong != status::success) co_return wrong;
  if (const status wrong = what.check_no_data(); wrong != status::success) co_return wrong;
  nvme::disk& disk = where.of->disk();
  co_await on_disk(disk.zero(where.offset, where.bytes), true);
  co_await make_durable(disk, fields_of<block_fields>(what.asked()));
  ++done_.others;
  co_return status::success;
}

task<outcome> io_commands::manage(request& what) {
  const auto how = fields_of<dataset_fields>(what.asked());
  const name_space* const of = controller_.from().of->find(what.asked().nsid);
  if (of == nullptr) co_return status::invalid_namespace;
  // Linux always brings room for as many ranges as there can be.
  constexpr std::size_t most_bytes = 256 * dataset_range::bytes;
  const std::size_t bytes = how.ranges * dataset_range::bytes;
  const std::uint32_t brought = what.asked().data.length;
  if (brought < bytes || brought > most_bytes) co_return status::sgl_data_length_invalid;
  if (const status wrong = what.check_from_host(brought); wrong != status::success) co_return wrong;
  if (how.deallocate && of->disk().read_only()) co_return status::namespace_write_protected;
  weft::mr::buffer room;
  const auto data = co_await what.from_host(brought, room);
  const std::vector<dataset_range> ranges = decode_dataset_ranges(data.first(bytes));
  const auto is_there = [&](const dataset_range& each) { return of->has(each.first, each.count); };
  if (!std::ranges::all_of(ranges, is_there)) co_return status::lba_out_of_range;
  ++done_.others;
  if (!how.deallocate) co_return status::success;  // the rest are hints
  const unsigned shift = of->block_shift();
  for (const dataset_range& each : ranges) {
    if (each.count == 0) continue;
    co_await on_disk(of->disk().deallocate(each.first << shift, std::uint64_t{each.count} << shift), true);
  }
  co_return status::success;
}

task<outcome> io_commands::flush(request& what) {
  if (const status wrong = what.check_no_data(); wrong != status::success) co_return wrong;
  const subsystem& served = *controller_.from().of;
  const std::uint32_t id = what.asked().nsid;
  const name_space* const one = served.find(id);
  if (one == nullptr && id != every_namespace) co_return status::invalid_namespace;
  ++done_.others;
  for (const name_space& each : served.all()) {
    if (one == nullptr || one == &each) co_await on_disk(each.disk().flush(), true);
  }
  co_return status::success;
}

}  // namespace nvme
