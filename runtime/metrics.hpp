// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

class executor;
class executor_group;

/// Collects values for Prometheus and formats them in its text format (version 0.0.4), which the program serves over
/// HTTP however it likes. See https://prometheus.io/docs/instrumenting/exposition_formats/
///
///     metrics all;
///     add_to(all, home, "main");
///     mr::add_to(all, device.pool().statistics(), "device");
///     const std::string page = all.text();
class metrics {
 public:
  /// Adds a value that only grows. `labels` is empty or in the format's form: `executor="main"` (see label()).
  /// Prometheus keeps only one of two values with the same name and labels.
  void counter(std::string_view name, std::string_view help, const std::string& labels, std::uint64_t value);
  /// Adds a value that goes up and down.
  void gauge(std::string_view name, std::string_view help, const std::string& labels, std::uint64_t value);

  /// All that was added, in the text format.
  [[nodiscard]] std::string text() const;

  /// One label, with special characters in its value escaped, and U+FFFD for bytes that are not UTF-8.
  [[nodiscard]] static std::string label(std::string_view name, std::string_view value);

 private:
  // All samples of one name, which must be together in the text.
  struct family {
    std::string name;
    std::string head;
    std::string samples;
  };
  void add(std::string_view type, std::string_view name, std::string_view help, const std::string& labels,
           std::uint64_t value);

  std::vector<family> families_;
};

/// Adds the counters of an executor, with the label executor="NAME". From any thread.
void add_to(metrics& all, const executor& what, std::string_view name);
/// Adds the counters of each executor of a group, as "NAME 0", "NAME 1" and so on. From any thread.
void add_to(metrics& all, const executor_group& what, std::string_view name);

}  // namespace weft
