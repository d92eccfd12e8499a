// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/weft.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <nvme/controller.hpp>
#include <nvme/request.hpp>
#include <nvme/target.hpp>

namespace nvme {

class queue;

/// The commands of an admin queue, but for Connect.
class admin_commands {
 public:
  admin_commands(target& home, controller& of, queue& on) noexcept : home_(home), controller_(of), queue_(on) {}

  [[nodiscard]] weft::task<outcome> execute(request& what);
  [[nodiscard]] weft::task<outcome> set_property(request& what);
  [[nodiscard]] outcome get_property(const request& what) const;

 private:
  [[nodiscard]] weft::task<outcome> configure(std::uint32_t value);
  [[nodiscard]] weft::task<bool> shut_down();
  [[nodiscard]] weft::task<bool> flush_disks();
  [[nodiscard]] weft::task<outcome> execute_without_data(request& what);
  [[nodiscard]] outcome set_feature(const command& from);
  [[nodiscard]] weft::task<outcome> identify(request& what);
  [[nodiscard]] status identify_into(const command& asked, std::span<std::byte> into) const;
  [[nodiscard]] controller_identity identify_controller() const;
  [[nodiscard]] weft::task<outcome> get_log_page(request& what);
  [[nodiscard]] std::optional<std::vector<std::byte>> log(log_page which);

  target& home_;
  controller& controller_;
  queue& queue_;
  bool configuring_ = false;
};

}  // namespace nvme
