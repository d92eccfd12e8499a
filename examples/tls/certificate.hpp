// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace tls {

/// Who a server is: a certificate that vouches for itself, and the key to it. Both in PEM.
struct identity {
  std::string certificate;
  std::string key;
};

/// Makes a new one, for a day: an elliptic-curve key (P-256), and a certificate for the DNS name. Throws
/// std::runtime_error with OpenSSL's words.
[[nodiscard]] identity make_identity(const std::string& name);

}  // namespace tls
