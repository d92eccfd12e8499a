// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/mr/domain_statistics.hpp>
#include <weft/mr/memory_record.hpp>
#include <weft/mr/registration.hpp>
#include <weft/mr/remote_region.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
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

/// A transport's part in registration: the layer under domains and regions, which depends on neither.
///
/// A transport derives from domain and overrides the virtual functions here: do_register() and do_deregister() at
/// least. Every registration is made here, checked against capabilities() and counted. Thread-safe.
class registrar {
 public:
  registrar(const registrar&) = delete;
  registrar& operator=(const registrar&) = delete;
  virtual ~registrar() = default;

  /// The fabric's name, for errors: "iwarp", "verbs:mlx5_0".
  [[nodiscard]] std::string_view name() const noexcept { return name_; }
  /// The fabric's capabilities beyond plain registration.
  [[nodiscard]] const domain_capabilities& capabilities() const noexcept { return capabilities_; }
  /// Whether registered memory is pinned by the kernel and counts against RLIMIT_MEMLOCK.
  [[nodiscard]] bool pins() const noexcept { return capabilities_.pins; }

  /// Counts of the registrations so far. From any thread.
  [[nodiscard]] domain_statistics statistics() const noexcept;

  /// Registers `memory`, which is that of `target`, anew, with `options`; no local operation may use the region. For
  /// workers. If it throws weft::error, the registration is as it was.
  void refresh_now(detail::region_state& target, std::span<std::byte> memory, const registration_options& options);

  /// Registers on the calling thread, which may block: for workers. The result is empty for device memory that the
  /// fabric does not reach. The errors of domain::register_memory(), and errc::not_supported for
  /// usage::flush_persistent, which needs a record.
  [[nodiscard]] registration register_now(std::span<std::byte> memory, const registration_options& options);
  /// Registers the ranges of a record with every fabric of the device; device memory with those that reach it. Blocks
  /// and throws in the same way.
  void register_now(memory_record& target, const registration_options& options);
  /// Deregisters on the calling thread, which may block. Once it returns, nobody touches the memory; for the exception
  /// of registration_options::direct, see docs/shm.md.
  void deregister_now(registration& item) noexcept;
  /// Ends all registrations of a record in the same way.
  void deregister_now(memory_record& target) noexcept;

  /// Whether the fabric's device carries out persistent flushes of memory that is registered with `options`. Other
  /// memory with usage::flush_persistent is flushed by its owner.
  [[nodiscard]] bool is_flushed_by_device(const registration_options& options) const noexcept;
  /// Returns the descriptor with which peers use the first `size` bytes of `target` for the usages `open`.
  [[nodiscard]] remote_region describe(const memory_record& target, std::uint64_t size, mr::usage open) const;

  /// The number of this fabric in the device, as memory_record::in() takes it; 0 for a device's only fabric. Set before
  /// the first registration.
  [[nodiscard]] std::size_t fabric() const noexcept { return fabric_; }
  /// Sets fabric().
  virtual void be_fabric(std::size_t place) noexcept { fabric_ = place; }

  /// Maps memory for a pool's arena: anonymous by default. A domain that shares arenas with other processes overrides
  /// this function with mapping::in_memory_file(), and memory_record::file then has the descriptor. Blocks: for
  /// workers. Throws errc::no_memory, or the system's error.
  [[nodiscard]] virtual mapping provide(std::size_t bytes, bool huge_pages, int node, weft::system_calls& calls);

  /// Shares a registered record with peers of this machine: registration_options::direct. Throws weft::error.
  void share(memory_record& target) { do_share(target); }

  /// Has the fabrics that see peers' writes count them with `counter`, which must live until `target` is deregistered.
  void count_writes(memory_record& target, detail::write_counter_core& counter) { do_count_all(target, counter); }
  /// Counts the writes to one registration. Only where domain_capabilities::gates is true.
  void count_writes(const registration& item, detail::write_counter_core& counter) { do_count_writes(item, counter); }
  /// Gives peers access to memory that was registered as disabled. Only where domain_capabilities::gates is true.
  void enable(const registration& item) { do_enable(item); }

 protected:
  /// Takes the fabric's name, and what it can do.
  registrar(std::string name, const domain_capabilities& capabilities)
      : name_(std::move(name)), capabilities_(capabilities) {}

  /// Registers memory. Called on any thread, and on several threads at the same time; on an executor's thread only if
  /// no worker can be started. The options have been checked against capabilities(). Throws weft::error.
  virtual registration do_register(std::span<std::byte> memory, const registration_options& options) = 0;
  /// Deregisters memory. Called on any thread. When it returns, neither the transport nor a peer touches the memory;
  /// for the exception of registration_options::direct, see docs/shm.md.
  virtual void do_deregister(registration& item) noexcept = 0;

  /// Registers all of a record with every fabric, or with none; this default implementation has one fabric. Called as
  /// do_register() is.
  virtual void do_register_all(memory_record& target, const registration_options& options);
  /// Undoes do_register_all(). Called as do_deregister() is.
  virtual void do_deregister_all(memory_record& target) noexcept;
  /// Lets peers of this machine map the file of `target` until `target` is deregistered. Called after
  /// do_register_all(), on the same threads. Throws weft::error. Does nothing by default, for transports without such
  /// peers.
  virtual void do_share(memory_record& target);
  /// Whether every fabric reaches `target`, the registered memory of a device.
  [[nodiscard]] virtual bool do_reach_all(const memory_record& target) const noexcept {
    return target.is_within_reach_of(0);
  }
  /// Carries out describe(); this default implementation has one fabric.
  virtual remote_region do_describe(const memory_record& target, std::uint64_t size, mr::usage open) const;
  /// Registers several ranges, at most domain_capabilities::max_ranges, as one. Called as do_register() is. By default
  /// throws errc::not_supported.
  virtual registration do_register_ranges(std::span<const std::span<std::byte>> ranges,
                                          const registration_options& options);
  /// Counts peers' writes on every fabric that sees them; this default implementation has one fabric. Called on any
  /// thread.
  virtual void do_count_all(memory_record& target, detail::write_counter_core& counter);
  /// Counts peers' writes to `item` with `counter`, which lives until `item` is deregistered. Called on any thread,
  /// only if domain_capabilities::gates is true, and while peers cannot use the key: they have no access yet, or do not
  /// know the key yet.
  virtual void do_count_writes(const registration& item, detail::write_counter_core& counter);
  /// Gives peers access to `item`. Called on any thread, only if domain_capabilities::gates is true.
  virtual void do_enable(const registration& item);

  /// Calls do_register(), do_register_ranges() or register_of_device(), as `target` requires.
  [[nodiscard]] registration register_as(const memory_record& target, const registration_options& options);

  /// Takes the pages that are now mapped at `target`, which no local operation uses, into its registration. `options`
  /// are those of `target`, or, where domain_capabilities::gates is false, those with which it is enabled. The
  /// implementation of class domain makes another registration, then ends the old one. Called on any thread except an
  /// executor's. If it throws weft::error, the registration must be as it was.
  virtual void do_refresh(detail::region_state& target, const registration_options& options) = 0;

  /// Calls do_register() for device memory. Returns an empty registration if the fabric does not reach the memory.
  [[nodiscard]] registration register_of_device(std::span<std::byte> memory, const registration_options& options);

  /// Throws if the options are wrong, or if `memory` cannot be registered with them.
  void check(std::span<std::byte> memory, const registration_options& options) const;
  /// Throws if several ranges cannot be one region with these options.
  void check_ranges(std::span<const std::span<std::byte>> ranges, const registration_options& options) const;

 private:
  // Throws errc::not_supported if the owner must, but cannot, make `memory` persistent. For workers.
  void check_persistent(std::span<const std::byte> memory, const registration_options& options) const;
  void check_supported(const registration_options& options) const;
  void check_device(const registration_options& options) const;
  void check_everything(const registration_options& options) const;
  [[nodiscard]] usage usages_for(const registration_options& options) const noexcept;
  [[nodiscard]] registration_options without_peers(const registration_options& options) const noexcept;
  void open_by_owner(memory_record& target, const registration_options& options) const;

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
