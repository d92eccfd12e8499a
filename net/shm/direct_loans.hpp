// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <weft/net/link/transport.hpp>
#include <weft/net/shm/record.hpp>
#include <weft/net/shm/ring.hpp>
#include <weft/net/software/direct_memory.hpp>
#include <weft/net/software/key_table.hpp>
#include <weft/runtime/core/executor_core.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace weft::net::shm {

/// What one end has lent to the other for direct access: see mr::registration_options::direct.
///
/// A range is offered when the peer has accessed it for the first time by way of this end, which executes as before
/// until the peer has the file mapped. A loan ends when its key is revoked: the peer is shut out at once, through the
/// words that both share, and then told to give the memory back. On the executor of the connection, but for the regions
/// that end on other threads.
class direct_loans final : private weft::detail::remote_work {
 public:
  class lender {
   public:
    /// A region has ended: there is something to say.
    virtual void loans_ended() noexcept = 0;

   protected:
    ~lender() = default;
  };

  /// `own` and `other` are this end's words and the peer's; all outlive it.
  direct_loans(lender& owner, executor_core& home, end_words& own, const end_words& other) noexcept
      : owner_(owner), home_(home), own_(own), other_(other) {}
  direct_loans(const direct_loans&) = delete;
  direct_loans& operator=(const direct_loans&) = delete;
  /// Takes everything back, from a peer that is outside, has gone, or breaks the rules.
  ~direct_loans();

  /// The peer has accessed memory that may be lent: `range` is what the key opens.
  void consider(std::uint32_t key, const software::key_table::reader::range& range,
                software::direct_memory& whole) noexcept;
  /// The key has been revoked. Calls who.revoked() once the peer is out.
  void revoke(std::uint32_t key, revocation& who) noexcept;
  /// The connection has ended: shuts the peer out of everything. True once it is outside; ask again until then.
  [[nodiscard]] bool shut_out() noexcept;

  /// What is to be said to the peer, and has room in the ring now.
  struct notice {
    record header;
    offered_memory where{};  // of an offer, whose file has to be sent first
    int file = -1;
  };
  [[nodiscard]] std::optional<notice> next_notice() noexcept;
  void said(const notice& what) noexcept;
  /// The offer's file could not be sent: until the peer's next access.
  void withhold(const notice& what) noexcept;
  /// An answer of the peer's. Yields what is wrong with it, or null.
  [[nodiscard]] const char* heard(const record& answer) noexcept;

 private:
  // A loan's life:
  //   free       there is none
  //   wanted     the peer has accessed the range
  //   offered    it has been told of the file
  //   lent       it has it mapped
  //   declined   it cannot map it, and is not asked again
  //   ending     the peer is shut out, and is to be told so
  //   withdrawn  it has been told
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
    revocation* who = nullptr;       // waits for the peer
    std::atomic<bool> ended{false};  // by the region, on its thread; `at` does not know of it yet

   private:
    void end() noexcept override;
    std::atomic<std::uint64_t> turn_{0};  // of the peer, when it was shut out
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
  std::optional<std::uint32_t> unanswered_;   // the offer that the peer has not answered
  std::atomic<bool> submitted_{false};        // run_on_executor() is due
};

}  // namespace weft::net::shm
