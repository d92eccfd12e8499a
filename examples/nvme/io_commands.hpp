// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/weft.hpp>

#include <cstdint>
#include <exception>

#include <nvme/controller.hpp>
#include <nvme/request.hpp>
#include <nvme/target.hpp>

namespace nvme {

/// The commands of an I/O queue.
class io_commands {
 public:
  io_commands(target& home, controller& of, nvme::counters& counters) noexcept
      : home_(home), controller_(of), done_(counters) {}

  [[nodiscard]] weft::task<outcome> execute(request& what);

 private:
  struct blocks {
    const name_space* of = nullptr;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
  };

  [[nodiscard]] weft::task<outcome> try_to(request& what);
  [[nodiscard]] status find_blocks(const command& asked, blocks& found) const noexcept;
  [[nodiscard]] status find_writable(const command& asked, blocks& found) const noexcept;
  [[nodiscard]] weft::task<outcome> read(request& what);
  [[nodiscard]] weft::task<outcome> write(request& what);
  [[nodiscard]] weft::task<outcome> write_zeroes(request& what);
  [[nodiscard]] weft::task<outcome> manage(request& what);
  [[nodiscard]] weft::task<outcome> flush(request& what);
  [[nodiscard]] weft::task<> make_durable(nvme::disk& what, const block_fields& how);

  target& home_;
  controller& controller_;
  nvme::counters& done_;
  std::uint64_t failures_ = 0;  // of disks
};

/// What a host is told of a disk's failure.
[[nodiscard]] status status_of(const std::exception& failure, bool writes) noexcept;

}  // namespace nvme
