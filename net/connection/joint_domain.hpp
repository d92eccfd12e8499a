// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/domain.hpp>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace weft::net {

/// The names of these domains or transports, separated by commas.
template <class Part>
[[nodiscard]] std::string join_names(const std::vector<Part>& parts) {
  std::string names;
  for (const auto& each : parts) names.append(names.empty() ? "" : ",").append(each->name());
  return names;
}

/// The domain of a device of several fabrics: memory is registered with each, in their order, or with none. A hardware
/// device that was removed is left out, and so is a fabric that does not reach device memory.
///
/// Memory is registered with all fabrics from the start, not when a fabric is first used: a registration pins pages,
/// which takes milliseconds for each GiB and would delay the first operation on that fabric, above all when it replaces
/// a fabric that has failed.
class joint_domain final : public mr::domain {
 public:
  /// `parts`: two to mr::max_fabrics domains, each of which knows its number, mr::domain::fabric().
  explicit joint_domain(std::vector<std::shared_ptr<mr::domain>> parts);

  [[nodiscard]] mr::mapping provide(std::size_t bytes, bool huge_pages, int node, weft::system_calls& calls) override;
  [[nodiscard]] bool may_shrink(const mr::memory_record& memory) const noexcept override {
    return std::ranges::any_of(parts_, [&](const auto& part) { return part->may_shrink(memory); });
  }

 private:
  void do_register_all(mr::memory_record& target, const mr::registration_options& options) override;
  void do_deregister_all(mr::memory_record& target) noexcept override;
  void do_share(mr::memory_record& target) override;
  void do_count_all(mr::memory_record& target, mr::detail::write_counter_core& counter) override;
  [[nodiscard]] bool do_reach_all(const mr::memory_record& target) const noexcept override;
  [[nodiscard]] mr::remote_region do_describe(const mr::memory_record& target, std::uint64_t size,
                                              mr::usage open) const override;
  void do_refresh(mr::detail::region_state& target, const mr::registration_options& options) override;
  /// Both functions are for a domain of one fabric: here the first throws, and the second ends the program.
  [[nodiscard]] mr::registration do_register(std::span<std::byte> memory,
                                             const mr::registration_options& options) override;
  void do_deregister(mr::registration& item) noexcept override;

  [[nodiscard]] std::vector<mr::registration> register_with_all(std::span<std::byte> memory,
                                                                const mr::registration_options& options);
  /// Deregisters registrations that belong to no record: one of each part, or of the first parts.
  void deregister(std::span<mr::registration> made) noexcept;

  std::vector<std::shared_ptr<mr::domain>> parts_;
};

}  // namespace weft::net
