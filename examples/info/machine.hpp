// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/fabrics.hpp>
#include <weft/runtime/system/system_calls.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace info {

/// An IP address of a network interface.
struct interface_address {
  std::string interface {};
  std::string address{};  ///< without the prefix: "10.0.0.7", "fd77::1"
  unsigned prefix = 0;
  bool link_local = false;
};

/// How an executor would wait here.
struct driver_info {
  std::string name{};     ///< "io_uring", "epoll"
  std::string reason{};   ///< executor::driver_reason()
  std::string failure{};  ///< why no executor can be made; empty
};

/// What files do not tell. A test overrides what it wants to be otherwise.
class machine_calls {
 public:
  virtual ~machine_calls() = default;

  [[nodiscard]] virtual std::vector<interface_address> addresses();
  /// Opens the device file for reading and writing and closes it: 0 or the errno. Permissions, and a container's
  /// device controller, show only in an attempt.
  [[nodiscard]] virtual int try_to_open(const std::string& path);
  /// What memfd_create(2) says: 0 or the errno.
  [[nodiscard]] virtual int try_memory_file();
  [[nodiscard]] virtual driver_info event_driver();
  [[nodiscard]] virtual std::vector<weft::net::fabric_info> fabrics();
  /// Whether weft is built with the transport.
  [[nodiscard]] virtual bool has_verbs();
  [[nodiscard]] virtual bool has_iwarp();
  [[nodiscard]] virtual std::string environment(const char* name);
  /// uname(2): "x86_64".
  [[nodiscard]] virtual std::string architecture();
  /// The file from which this process has libibverbs, whose name ends with its version; empty if it has none.
  [[nodiscard]] virtual std::string verbs_library();
  /// Those by which names are looked up.
  [[nodiscard]] virtual weft::system_calls& system() { return weft::system_calls::kernel(); }
};

/// The machine that weft-info looks at: its files below a root, and the calls. One seam for tests.
class machine {
 public:
  machine() : machine("/", real_calls()) {}
  /// `calls` outlives it.
  machine(std::string root, machine_calls& calls);

  [[nodiscard]] machine_calls& calls() const noexcept { return calls_; }

  /// The file's text without the white space at its end; empty where it cannot be read. At most 64 KiB of it.
  [[nodiscard]] std::optional<std::string> read(std::string_view path) const;
  /// The number at the beginning of the file.
  [[nodiscard]] std::optional<std::int64_t> read_number(std::string_view path) const;
  /// The names in a folder, sorted: numbers by value. None where it cannot be read.
  [[nodiscard]] std::vector<std::string> list(std::string_view path) const;
  [[nodiscard]] bool exists(std::string_view path) const;
  /// The last part of what a symbolic link names; empty if there is none.
  [[nodiscard]] std::string link_name(std::string_view path) const;

  /// A line of a file like /proc/self/status: what stands behind "NAME:".
  [[nodiscard]] std::string field(std::string_view path, std::string_view name) const;

  [[nodiscard]] static machine_calls& real_calls();

 private:
  [[nodiscard]] std::string real_path(std::string_view path) const;

  std::string root_;
  machine_calls& calls_;
};

/// The numbers of a list as the kernel writes it: "0-3,8". Empty for what is no such list.
[[nodiscard]] std::vector<unsigned> parse_cpu_list(std::string_view text);

}  // namespace info
