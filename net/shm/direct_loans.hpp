// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/net/shm/record.hpp>
#include <weft/net/shm/ring.hpp>
#include <weft/net/software/direct_memory.hpp>
#include <weft/net/software/key_table.hpp>
#include <weft/runtime/core/executor_core.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace weft::net::shm {

/// Memory that this end has lent to the peer for direct access: see mr::registration_options::direct.
///
/// A range is offered when the peer has accessed it for the first time through this end, which goes on executing the
/// peer's requests until the peer has mapped the file. A loan ends when its key is revoked, or its region ends: the
/// peer is shut out at once, through the shared end_words, and then asked to give the memory back. Used on the
/// connection's executor, except that regions may end on other threads.
class direct_loans final : private weft::detail::remote_work {
 public:
  class lender {
   public:
    /// Called on the executor when a region has ended, so there are notices to send. May destroy the direct_loans.
    virtual void loans_ended() noexcept = 0;

   protected:
    ~lender() = default;
  };

  /// `own` and `other` are this end's words and the peer's. All arguments must outlive this object.
  direct_loans(lender& owner, executor_core& home, end_words& own, const end_words& other) noexcept
      : owner_(owner), home_(home), own_(own), other_(other) {}
  direct_loans(const direct_loans&) = delete;
  direct_loans& operator=(const direct_loans&) = delete;
  /// Takes all loans back. The peer must be outside of the memory, be gone, or have broken the rules.
  ~direct_loans();

  /// Plans to offer memory that the peer has accessed, if it may be lent; `range` is the range that the key opens.
  void consider(std::uint32_t key, const software::key_table::reader::range& range,
                software::direct_memory& whole) noexcept;
  /// Ends the loan of a revoked key. Calls who.revoked() once the peer is known to be outside of the memory, maybe at
  /// once.
  void revoke(std::uint32_t key, revocation& who) noexcept;
  /// Shuts the peer out of everything, because the connection has ended. True once it is outside; ask again until then.
  [[nodiscard]] bool shut_out() noexcept;

  /// A record for the peer about a loan.
  struct notice {
    record header;
    offered_memory where{};  // only in an offer
    int file = -1;           // only in an offer: has to be sent before the record
  };
  [[nodiscard]] std::optional<notice> next_notice() noexcept;
  void said(const notice& what) noexcept;
  /// Drops an offer whose file could not be sent: the range is offered again at the peer's next access.
  void withhold(const notice& what) noexcept;
  /// Takes an answer of the peer's. Returns what is wrong with it, or null.
  [[nodiscard]] const char* heard(const record& answer) noexcept;

 private:
  // A loan's life:
  //   free       there is no loan
  //   wanted     the peer has accessed the range
  //   offered    the peer has been sent the file
  //   lent       the peer has the file mapped
  //   declined   the peer cannot map the file, and is not asked again
  //   ending     the peer is shut out, and a `withdrawn` record has yet to be sent
  //   withdrawn  the `withdrawn` record has been sent, and not been answered
  enum class stage : std::uint8_t { free, wanted, offered, lent, declined, ending, withdrawn };
  class item final : public software::direct_memory::loan {
   public:
    item(direct_loans& where, std::uint32_t its) noexcept : owner(where), number(its) {}

    void open() noexcept;
    void shut() noexcept;
    [[nodiscard]] bool is_outside() const noexcept override;

    direct_loans& owner;
    const std::uint32_t number;
    stage at = stage::free;
    std::uint32_t key = 0;
    software::key_table::reader::range range{};
    std::shared_ptr<software::direct_memory> whole;
    revocation* who = nullptr;       // told when the peer has given the memory back; null: nobody waits for that
    std::atomic<bool> ended{false};  // set by the region on its thread; `at` follows on the executor

   private:
    void end() noexcept override;
    std::atomic<std::uint64_t> turn_{0};  // the peer's `turn` when the peer was shut out
  };

  void run_on_executor() noexcept override;
  [[nodiscard]] item* find(std::uint32_t key) noexcept;
  [[nodiscard]] item* find_free();
  static void free(item& what) noexcept;

  lender& owner_;
  executor_core& home_;
  end_words& own_;
  const end_words& other_;
  std::vector<std::unique_ptr<item>> items_;  // by their numbers
  std::optional<std::uint32_t> unanswered_;   // number of the offer that the peer has not answered
  std::atomic<bool> submitted_{false};        // run_on_executor() is due
};

}  // namespace weft::net::shm
