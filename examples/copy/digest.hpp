// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

struct evp_md_ctx_st;

namespace copy {

using digest = std::array<std::byte, 32>;

/// 64 hexadecimal digits.
[[nodiscard]] std::string to_string(const digest& value);

/// SHA-256 of a file as it comes by (FIPS 180-4; EVP_DigestUpdate(3)).
class sha256 {
 public:
  sha256();
  void update(std::span<const std::byte> bytes);
  /// Once, at the end.
  [[nodiscard]] digest finish();

 private:
  struct free_context {
    void operator()(evp_md_ctx_st* context) const noexcept;
  };
  std::unique_ptr<evp_md_ctx_st, free_context> context_;
};

}  // namespace copy
