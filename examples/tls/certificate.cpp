// SPDX-License-Identifier: Apache-2.0
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cstdint>
#include <memory>
#include <stdexcept>

#include <tls/certificate.hpp>

namespace tls {
namespace {

template <auto Free>
struct deleter {
  template <class T>
  void operator()(T* object) const noexcept {
    Free(object);
  }
};
using key_ptr = std::unique_ptr<EVP_PKEY, deleter<EVP_PKEY_free>>;
using certificate_ptr = std::unique_ptr<X509, deleter<X509_free>>;
using extension_ptr = std::unique_ptr<X509_EXTENSION, deleter<X509_EXTENSION_free>>;
using text_ptr = std::unique_ptr<BIO, deleter<BIO_free_all>>;

void check(bool good, const char* what) {
  if (good) return;
  char words[256];
  ERR_error_string_n(ERR_get_error(), words, sizeof words);
  throw std::runtime_error(std::string(what) + ": " + words);
}

void extend(X509& certificate, int kind, const std::string& value) {
  const extension_ptr extension(X509V3_EXT_conf_nid(nullptr, nullptr, kind, value.c_str()));
  check(extension != nullptr && X509_add_ext(&certificate, extension.get(), -1) == 1, "extend the certificate");
}

std::string text_of(BIO& pem) {
  char* bytes = nullptr;
  const long count = BIO_get_mem_data(&pem, &bytes);
  return {bytes, static_cast<std::size_t>(count)};
}

}  // namespace

identity make_identity(const std::string& name) {
  constexpr long a_day = 24L * 60 * 60;
  constexpr long clocks_differ = 60L * 60;
  const key_ptr key(EVP_EC_gen("P-256"));
  check(key != nullptr, "make a key");
  const certificate_ptr certificate(X509_new());
  check(certificate != nullptr && X509_set_version(certificate.get(), X509_VERSION_3) == 1, "make a certificate");
  std::uint32_t serial = 0;
  check(RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof serial) == 1, "draw a serial number");
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate.get()), serial);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -clocks_differ);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), a_day);
  X509_NAME* const subject = X509_get_subject_name(certificate.get());
  const auto* const common = reinterpret_cast<const unsigned char*>(name.c_str());
  check(X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8, common, -1, -1, 0) == 1, "name the certificate");
  check(X509_set_issuer_name(certificate.get(), subject) == 1, "name the issuer");
  check(X509_set_pubkey(certificate.get(), key.get()) == 1, "put the key into the certificate");
  extend(*certificate, NID_basic_constraints, "critical,CA:TRUE");
  extend(*certificate, NID_subject_alt_name, "DNS:" + name);
  check(X509_sign(certificate.get(), key.get(), EVP_sha256()) != 0, "sign the certificate");

  const text_ptr public_part(BIO_new(BIO_s_mem()));
  check(public_part != nullptr && PEM_write_bio_X509(public_part.get(), certificate.get()) == 1, "write a certificate");
  const text_ptr secret_part(BIO_new(BIO_s_mem()));
  check(secret_part != nullptr &&
            PEM_write_bio_PrivateKey(secret_part.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr) == 1,
        "write a key");
  identity made;
  made.certificate = text_of(*public_part);
  made.key = text_of(*secret_part);
  return made;
}

}  // namespace tls
