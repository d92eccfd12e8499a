// SPDX-License-Identifier: Apache-2.0
#include "digest.hpp"

#include <fmt/core.h>
#include <openssl/evp.h>

#include "failure.hpp"

namespace copy {
namespace {

void check(int result) {
  if (result != 1) throw failure("the SHA-256 of libcrypto does not work");
}

}  // namespace

std::string to_string(const digest& value) {
  std::string text;
  for (const std::byte byte : value) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text;
}

void sha256::free_context::operator()(evp_md_ctx_st* context) const noexcept { EVP_MD_CTX_free(context); }

sha256::sha256() : context_(EVP_MD_CTX_new()) { check(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr)); }

void sha256::update(std::span<const std::byte> bytes) {
  check(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()));
}

digest sha256::finish() {
  digest value{};
  check(EVP_DigestFinal_ex(context_.get(), reinterpret_cast<unsigned char*>(value.data()), nullptr));
  return value;
}

}  // namespace copy
