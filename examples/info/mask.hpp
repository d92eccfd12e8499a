// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace info {

/// Replaces host names, addresses and GUIDs in texts by "host-1", "address-2", "link-local-1" and "guid-3": the same
/// one by the same word, however it is written, so that one still sees which belong together. Addresses of the loopback
/// and those that stand for all addresses stay. What merely looks like a GUID is replaced as well.
class mask {
 public:
  /// `hosts` are names by which machines are known in the texts, and their first parts; empty ones are left out.
  explicit mask(const std::vector<std::string>& hosts);

  [[nodiscard]] std::string apply(std::string_view text);

 private:
  [[nodiscard]] std::string word_for(const std::string& found);
  [[nodiscard]] std::string numbered(const std::string& kind, const std::string& key);

  std::vector<std::string> hosts_;                                     // longest first
  std::map<std::string, std::map<std::string, std::size_t>> numbers_;  // kind, then what it stands for
};

}  // namespace info
