// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/domain_statistics.hpp>
#include <weft/mr/memory_record.hpp>
#include <weft/mr/registration.hpp>
#include <weft/mr/remote_region.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace weft {
class system_calls;
}

namespace weft::mr {

class mapping;

namespace detail {
class region_state;
class write_counter_core;
}  // namespace detail

/// The work of a transport on memory: the layer under domains and regions, which knows neither.
///
/// A transport derives from domain, and writes what is virtual here: do_register() and do_deregister() at least.
/// Everything that registers comes through here, is checked against capabilities() and counted. Thread-safe.
class registrar {
 public:
  registrar(const registrar&) = delete;
  registrar& operator=(const registrar&) = delete;
  virtual ~registrar() = default;

  /// The fabric's name, for errors: "iwarp", "verbs:mlx5_0".
  [[nodiscard]] std::string_view name() const noexcept { return name_; }
  /// What it can do beyond plain registration.
  [[nodiscard]] const domain_capabilities& capabilities() const noexcept { return capabilities_; }
  /// Whether registered memory is pinned by the kernel and counts against RLIMIT_MEMLOCK.
  [[nodiscard]] bool pins() const noexcept { return capabilities_.pins; }

  /// What it has done so far. From any thread.
  [[nodiscard]] domain_statistics statistics() const noexcept;

  /// Refreshes `item`, the registration of `target`, which nobody uses. For workers.
  void refresh_now(registration& item, detail::region_state& target);
  /// Registers `target` with other memory or options. If this throws, `item` says whether it is still registered.
  void reregister_now(std::optional<registration>& item, detail::region_state& target, std::span<std::byte> memory,
                      const registration_options& options);

  /// Registers on the calling thread, which may block: for workers. The same errors.
  [[nodiscard]] registration register_now(std::span<std::byte> memory, const registration_options& options);
  /// Registers the ranges of a record with every fabric of the device.
  void register_now(memory_record& target, const registration_options& options);
  /// Deregisters on the calling thread, which may block. Nobody touches the memory once it returns.
  void deregister_now(registration& item) noexcept;
  /// The same for all registrations of a record.
  void deregister_now(memory_record& target) noexcept;

  /// What peers need to use `size` bytes of registered memory for `open`.
  [[nodiscard]] remote_region describe(const memory_record& target, std::uint64_t size, mr::usage open) const;

  /// The number of its fabric in the device: the place in memory_record::in(). Set before it registers anything; 0 for
  /// the only fabric of a device.
  [[nodiscard]] std::size_t fabric() const noexcept { return fabric_; }
  /// Tells it that number.
  virtual void be_fabric(std::size_t place) noexcept { fabric_ = place; }

  /// Memory for a pool's arena: anonymous, unless the domain says otherwise. One that hands it to other processes
  /// provides mapping::in_memory_file(), whose descriptor is then found in the record: memory_record::file. Work for a
  /// worker; throws errc::no_memory, or the system's error.
  [[nodiscard]] virtual mapping provide(std::size_t bytes, bool huge_pages, int node, weft::system_calls& calls);

  /// For registration_options::direct, of a record that has been registered. Throws weft::error.
  void share(memory_record& target) { do_share(target); }

  /// Has the fabrics that see what peers write count it, with `counter`, which lives until `target` is deregistered.
  void count_writes(memory_record& target, detail::write_counter_core& counter) { do_count_all(target, counter); }
  /// The same of one registration, where domain_capabilities::gates is true.
  void count_writes(const registration& item, detail::write_counter_core& counter) { do_count_writes(item, counter); }
  /// Where domain_capabilities::gates is true: lets peers in to what was registered as disabled.
  void enable(const registration& item) { do_enable(item); }

 protected:
  /// Takes the fabric's name, and what it can do.
  registrar(std::string name, const domain_capabilities& capabilities)
      : name_(std::move(name)), capabilities_(capabilities) {}

  /// Called on any thread but an executor's, many at a time, with options that have been checked against
  /// capabilities(). Throws weft::error.
  virtual registration do_register(std::span<std::byte> memory, const registration_options& options) = 0;
  /// Called on any thread. When it returns, neither the transport nor a peer touches the memory.
  virtual void do_deregister(registration& item) noexcept = 0;

  /// Called as do_register() and do_deregister() are: registers all of a record with every fabric, or with none. Here
  /// there is one.
  virtual void do_register_all(memory_record& target, const registration_options& options);
  /// Undoes do_register_all().
  virtual void do_deregister_all(memory_record& target) noexcept;
  /// Called as do_register_all() is, behind it: lets peers of this machine map the file of `target`, whose end is that
  /// of the registration. A transport without such peers has nothing to do.
  virtual void do_share(memory_record& target);
  /// Whether every fabric reaches the memory of a device that was registered.
  [[nodiscard]] virtual bool do_reach_all(const memory_record& target) const noexcept {
    return target.is_within_reach_of(0);
  }
  /// What a peer has to know to use the first `size` bytes of `target` for `open`.
  virtual remote_region do_describe(const memory_record& target, std::uint64_t size, mr::usage open) const;
  /// Called as do_register() is, for more than one range: only if max_ranges allows it.
  virtual registration do_register_ranges(std::span<const std::span<std::byte>> ranges,
                                          const registration_options& options);
  /// Called on any thread, for every fabric. Here there is one.
  virtual void do_count_all(memory_record& target, detail::write_counter_core& counter);
  /// Called on any thread, only with domain_capabilities::gates, and before peers are let in or know the key: makes
  /// `counter`, which lives until `item` is deregistered, count.
  virtual void do_count_writes(const registration& item, detail::write_counter_core& counter);
  /// Called likewise: lets peers in, without counting.
  virtual void do_enable(const registration& item);

  /// do_register() or do_register_ranges(), for what `target` says.
  [[nodiscard]] registration register_as(const memory_record& target, const registration_options& options);

  /// Called on any thread but an executor's: refreshes the pages of `item`, which nobody on this side uses. A domain
  /// registers it again by default. Throws weft::error, with `item` as it was.
  virtual void do_refresh(registration& item, detail::region_state& target) = 0;
  /// Called on any thread but an executor's, with options that have been checked: replaces `item`, the registration of
  /// `target`, which nobody uses, by another. A domain makes the new one before it ends the old one by default. Throws
  /// weft::error, with `item` as it was, or empty if it could not be kept.
  virtual void do_reregister(std::optional<registration>& item, detail::region_state& target,
                             std::span<std::byte> memory, const registration_options& options) = 0;

  /// do_register(), of memory of a device; nothing if the fabric does not reach that.
  [[nodiscard]] registration register_of_device(std::span<std::byte> memory, const registration_options& options);

  /// Throws what is wrong with the options, or with one range that is to be registered so.
  void check(std::span<std::byte> memory, const registration_options& options) const;
  /// The same for several ranges.
  void check_ranges(std::span<const std::span<std::byte>> ranges, const registration_options& options) const;

 private:
  void check_supported(const registration_options& options) const;
  void check_device(const registration_options& options) const;
  [[nodiscard]] usage usages_for(const registration_options& options) const noexcept;
  [[nodiscard]] registration_options without_peers(const registration_options& options) const noexcept;
  void open_to_peers(memory_record& target, const registration_options& options) const;

  template <class Register>
  void counted(std::size_t bytes, const Register& make);

  std::string name_;
  domain_capabilities capabilities_;
  std::size_t fabric_ = 0;
  std::atomic<std::uint64_t> registrations_{0};
  std::atomic<std::uint64_t> registered_bytes_{0};
  std::atomic<std::uint64_t> failures_{0};
  std::atomic<std::uint64_t> ended_{0};
};

}  // namespace weft::mr
