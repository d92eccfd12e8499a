// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nvme/disk.hpp>
#include <nvme/fabrics.hpp>
#include <nvme/identify.hpp>

namespace nvme {

/// A disk in blocks.
class name_space {
 public:
  name_space(std::uint32_t id, std::unique_ptr<nvme::disk> behind, std::uint8_t block_shift,
             const identifier& identity);

  [[nodiscard]] std::uint32_t id() const noexcept { return id_; }
  [[nodiscard]] nvme::disk& disk() const noexcept { return *disk_; }
  [[nodiscard]] std::uint8_t block_shift() const noexcept { return block_shift_; }
  [[nodiscard]] std::uint64_t blocks() const noexcept { return disk_->size() >> block_shift_; }
  [[nodiscard]] namespace_identity identify() const;

  /// Whether all of those blocks are there.
  [[nodiscard]] bool has(std::uint64_t first, std::uint64_t count) const noexcept {
    const std::uint64_t all = blocks();
    return first <= all && count <= all - first;
  }

 private:
  std::uint32_t id_;
  std::unique_ptr<nvme::disk> disk_;
  std::uint8_t block_shift_;
  identifier identity_;
};

/// What hosts connect to: namespaces under a name. It stays as it is while a target serves it, but for the sizes of its
/// disks.
class subsystem {
 public:
  /// Throws std::invalid_argument for a name that is no NQN.
  explicit subsystem(std::string nqn);

  /// Adds a namespace; ids begin at 1. Throws std::invalid_argument for a block size that is not a power of two from
  /// 512 to 64 KiB, for a disk that has not one block, for one whose last block would not be whole, and for more
  /// namespaces than one list holds.
  void add(std::unique_ptr<disk> behind, std::uint32_t block_bytes = 512);
  /// Lets this host in, and none that was not named. Throws std::invalid_argument for a name that is no NQN.
  void allow(std::string host);

  [[nodiscard]] const std::string& nqn() const noexcept { return nqn_; }
  /// The same each time for the same NQN.
  [[nodiscard]] const std::string& serial() const noexcept { return serial_; }
  [[nodiscard]] bool allows(std::string_view host) const noexcept;
  /// Null if there is none.
  [[nodiscard]] const name_space* find(std::uint32_t id) const noexcept;
  [[nodiscard]] const std::vector<name_space>& all() const noexcept { return namespaces_; }

 private:
  std::string nqn_;
  std::string serial_;
  std::vector<std::string> allowed_;
  std::vector<name_space> namespaces_;
};

}  // namespace nvme
