// SPDX-License-Identifier: Apache-2.0
#include "medium.hpp"

#include <weft/net/iwarp/transport.hpp>
#include <weft/net/link/native_protocol.hpp>
#include <weft/net/rails/transport.hpp>
#include <weft/net/shm/executor_state.hpp>
#include <weft/net/shm/handshake.hpp>
#include <weft/net/shm/transport.hpp>
#include <weft/net/software/domain.hpp>
#include <weft/runtime/error.hpp>
#ifdef WEFT_WITH_VERBS
#include <weft/net/verbs/transport.hpp>

#include "kit/standard.hpp"
#include "rdma.hpp"
#endif

#include <fmt/core.h>

#include <sys/prctl.h>

#include <cstdio>
#include <sstream>

namespace weft::sim {
namespace {

constexpr std::chrono::milliseconds stall_time(50);

class tcp : public medium {
 public:
  explicit tcp(system_calls& below) noexcept : calls_(below) {}

  [[nodiscard]] system_calls& calls() noexcept override { return calls_; }
  [[nodiscard]] std::unique_ptr<net::transport> open(const net::device_options& options) override {
    return net::iwarp::open_transport(options.iwarp, calls_);
  }
  void inflict(std::uint16_t, const fault&) override {}
  [[nodiscard]] bool opens(mr::domain& domain, std::uint32_t key) const override {
    net::software::key_table::reader keys(dynamic_cast<net::software::domain&>(domain).keys());
    const net::software::key_table::reader::batch look(keys);
    return keys.check_read(key, 0, 0, net::software::any_stream) != net::software::access_status::invalid_stag;
  }
  [[nodiscard]] std::string left_at(mr::domain& domain) const override {
    const std::size_t keys = dynamic_cast<net::software::domain&>(domain).keys().size();
    return keys == 0 ? "" : fmt::format("{} keys are left; ", keys);
  }
  [[nodiscard]] std::string leaks() override { return ""; }

 private:
  system_calls& calls_;
};

class simulated_memory final : public tcp {
 public:
  explicit simulated_memory(world& place) noexcept : tcp(place), place_(place) {
    place.local().port_of_hello = port_of;
    net::shm::executor_state::set_patience(patience);
  }

  [[nodiscard]] std::unique_ptr<net::transport> open(const net::device_options& options) override {
    return net::shm::open_transport(options.shm, place_);
  }
  [[nodiscard]] bool has_channels() const noexcept override { return true; }
  void inflict(std::uint16_t port, const fault& one) override {
    local_kernel& kernel = place_.local();
    switch (one.what) {
      case fault_kind::reset:
        return kernel.kill(port);
      case fault_kind::cut:
        return kernel.kill(port, stall_time);
      case fault_kind::stall:
        return kernel.stall(port, stall_time);
      case fault_kind::client_send_fails:
        return kernel.kill_in_send(port, true);
      case fault_kind::server_send_fails:
        return kernel.kill_in_send(port, false);
      case fault_kind::damage:  // memory has checks of its own; there are more places to die in
        return kernel.kill_in_call(port, 1 + place_.dice().below(most_calls));
    }
  }
  [[nodiscard]] std::string leaks() override { return place_.leaks(); }

 private:
  static constexpr std::uint64_t most_calls = 20;
  static constexpr std::uint32_t patience = 20;  // a connection lives for some hundred polls

  // A client gives its number in the script as its private data.
  static std::uint16_t port_of(std::span<const std::byte> hello) {
    net::shm::frame said;
    if (net::shm::unpack(hello, said) != net::shm::frame_status::good) return 0;
    const auto name = net::greeting::user_data(said.private_data());
    return name.empty() ? std::uint16_t{0}
                        : static_cast<std::uint16_t>(first_client_port + std::to_integer<unsigned>(name[0]));
  }

  world& place_;
};

class simulated_tcp final : public tcp {
 public:
  explicit simulated_tcp(world& place) noexcept : tcp(place), place_(place) {}

  void inflict(std::uint16_t port, const fault& one) override {
    switch (one.what) {
      case fault_kind::reset:
        return place_.reset(port);
      case fault_kind::cut:
        return place_.cut(port);
      case fault_kind::stall:
        return place_.stall(port, stall_time);
      case fault_kind::client_send_fails:
        return place_.fail_send(port, true, ENOBUFS);
      case fault_kind::server_send_fails:
        return place_.fail_send(port, false, EHOSTUNREACH);
      case fault_kind::damage:
        return place_.damage(port);
    }
  }
  [[nodiscard]] std::string leaks() override { return place_.leaks(); }

 private:
  world& place_;
};

// What the kernel holds for programs of this name, on whichever thread they asked for it: rdma-resource(8). Empty as
// well where there is no such tool. Contexts are left to the libraries, which keep some.
std::string held_on(const std::string& device) {
  FILE* const output = ::popen("printf 'resource show %s\\n' pd cq qp mr srq cm_id | rdma -f -b - 2>/dev/null", "r");
  if (output == nullptr) return "";
  std::string all;
  for (int next = std::fgetc(output); next != EOF; next = std::fgetc(output)) all.push_back(static_cast<char>(next));
  ::pclose(output);
  std::array<char, 16> name{};  // prctl(2): no longer
  ::prctl(PR_GET_NAME, name.data());
  const std::string own = fmt::format(" comm {}", name.data());
  std::istringstream lines(all);
  std::string found;
  for (std::string line; std::getline(lines, line);) {
    const bool is_of_device =
        line.find(' ' + device + ' ') != std::string::npos || line.find(' ' + device + '/') != std::string::npos;
    if (is_of_device && line.find(own) != std::string::npos) found += line + "; ";
  }
  return found;
}

class real_rdma final : public medium {
 public:
  explicit real_rdma(const std::string& device) : name_(device.substr(device.find(':') + 1)) {}

  [[nodiscard]] system_calls& calls() noexcept override { return system_calls::kernel(); }
  [[nodiscard]] std::unique_ptr<net::transport> open([[maybe_unused]] const net::device_options& options) override {
#ifdef WEFT_WITH_VERBS
    return net::verbs::open_transport(name_, options.verbs);
#else
    throw error(errc::not_supported, "the transport verbs, which is not in this build");
#endif
  }
  [[nodiscard]] bool has_zero_based() const noexcept override { return false; }
  [[nodiscard]] bool explains_no_end() const noexcept override { return true; }
  [[nodiscard]] bool keeps_descriptors() const noexcept override { return true; }
  void inflict(std::uint16_t, const fault&) override {}
  [[nodiscard]] std::string left_at(mr::domain&) const override { return ""; }
  [[nodiscard]] std::string leaks() override { return held_on(name_); }

 private:
  std::string name_;
};

#ifdef WEFT_WITH_VERBS
class simulated_rdma final : public medium {
 public:
  explicit simulated_rdma(world& place) : place_(place), device_(place) {}

  [[nodiscard]] system_calls& calls() noexcept override { return place_; }
  [[nodiscard]] std::unique_ptr<net::transport> open(const net::device_options& options) override {
    return net::verbs::open_transport(rdma::device_name, device_, options.verbs);
  }
  [[nodiscard]] abilities can() const noexcept override {
    const rdma_traits& traits = device_.traits();
    abilities all{
        .atomics = traits.has_atomics, .write_immediate = !traits.is_iwarp, .shared_receives = !traits.is_iwarp};
    if (traits.windows == net::verbs::window_kind::none) all.windows = abilities::none;
    if (traits.windows == net::verbs::window_kind::type_1) all.windows = abilities::of_all_peers;
    return all;
  }
  [[nodiscard]] bool has_zero_based() const noexcept override { return false; }
  [[nodiscard]] bool explains_no_end() const noexcept override { return true; }
  void inflict(std::uint16_t port, const fault& one) override {
    switch (one.what) {
      case fault_kind::reset:
        return device_.break_off(port);
      case fault_kind::cut:
        return device_.cut(port);
      case fault_kind::stall:
        return device_.stall(port, stall_time);
      case fault_kind::client_send_fails:
        return device_.fail_post(port, true);
      case fault_kind::server_send_fails:
        return device_.fail_post(port, false);
      case fault_kind::damage:  // that packets have checks for themselves; there are more ways to lose some
        return device_.take_cable_out(stall_time);
    }
  }
  void remove() override { device_.remove(); }
  [[nodiscard]] std::string left_at(mr::domain&) const override {
    return device_.windows() == 0 || device_.removed() ? "" : fmt::format("{} windows are left; ", device_.windows());
  }
  [[nodiscard]] std::string leaks() override {
    const std::string own = device_.leaks();
    return own + place_.leaks();
  }

 private:
  world& place_;
  rdma device_;
};
#endif

// Connections over several of the first two at once, as the script says. Each rail has cables of its own.
class simulated_rails final : public medium {
 public:
  simulated_rails(world& place, const script& what) : place_(place) {
    for (const rail_kind kind : what.rails) {
#ifdef WEFT_WITH_VERBS
      devices_.push_back(kind == rail_kind::rdma ? std::make_unique<rdma>(place, able_traits(place)) : nullptr);
#else
      if (kind == rail_kind::rdma) throw error(errc::not_supported, "the transport verbs, which is not in this build");
      devices_.push_back(nullptr);
#endif
    }
    if (has_rdma()) place_.leave_contents_out_of_trace();  // what rails say of a device's memory is where it lies
  }

  [[nodiscard]] system_calls& calls() noexcept override { return place_; }
  [[nodiscard]] std::unique_ptr<net::transport> open(const net::device_options& options) override {
    const auto home = std::make_shared<net::software::domain>(place_, "iwarp");
    homes_.push_back(home);
    std::vector<std::unique_ptr<net::transport>> ways;
    for (const auto& each : devices_) {
      ways.push_back(each == nullptr ? net::iwarp::open_transport(options.iwarp, home) : open_rdma(*each, options));
    }
    return net::rails::open_transport(std::move(ways), few_bytes);
  }
  [[nodiscard]] abilities can() const noexcept override {
    abilities all{.shared_receives = false};
#ifdef WEFT_WITH_VERBS
    for (const auto& each : devices_) all.write_immediate = all.write_immediate && !(each && each->traits().is_iwarp);
#endif
    return all;
  }
  [[nodiscard]] bool has_zero_based() const noexcept override { return !has_rdma(); }
  [[nodiscard]] bool explains_no_end() const noexcept override { return has_rdma(); }
  void inflict(std::uint16_t port, const fault& one) override {
    const std::uint16_t cable = cable_of(port - first_client_port, one.rail);
#ifdef WEFT_WITH_VERBS
    if (auto& device = devices_[one.rail]) return inflict_on(*device, cable, one);
#endif
    switch (one.what) {
      case fault_kind::reset:
      case fault_kind::damage:
        return place_.reset_cable(cable);
      case fault_kind::cut:
        return cut(place_, cable, one);
      case fault_kind::stall:
        return place_.stall_cable(cable, std::chrono::microseconds(one.lasts_us));
      case fault_kind::client_send_fails:
        return place_.fail_send_on_cable(cable, true, ENOBUFS);
      case fault_kind::server_send_fails:
        return place_.fail_send_on_cable(cable, false, EHOSTUNREACH);
    }
  }
  [[nodiscard]] bool has_rail(std::size_t connection, std::size_t rail) const override {
    const std::uint16_t cable = cable_of(connection, rail);
#ifdef WEFT_WITH_VERBS
    if (const auto& device = devices_[rail]) return device->connects_over(cable);
#endif
    return place_.connections_over(cable) != 0;
  }
  [[nodiscard]] std::string left_at(mr::domain&) const override {
    std::string found;
    for (const auto& each : homes_) {
      const auto home = each.lock();
      if (home != nullptr && home->keys().size() != 0) found += fmt::format("{} keys are left; ", home->keys().size());
    }
#ifdef WEFT_WITH_VERBS
    for (const auto& each : devices_) {
      if (each && each->windows() != 0) found += fmt::format("{} windows are left; ", each->windows());
    }
#endif
    return found;
  }
  [[nodiscard]] std::string leaks() override {
    std::string found;
#ifdef WEFT_WITH_VERBS
    for (const auto& each : devices_) found += each ? each->leaks() : "";
#endif
    return found + place_.leaks();
  }

 private:
  static constexpr net::rails::slicing few_bytes{.slice_bytes = 700, .least_spread_bytes = 1400};

  template <class Network>
  void cut(Network& network, std::uint16_t cable, const fault& one) {
    network.cut_cable(cable);
    if (one.lasts_us == 0) return;
    place_.at(place_.elapsed() + std::chrono::microseconds(one.lasts_us),
              [&network, cable] { network.mend_cable(cable); });
  }

#ifdef WEFT_WITH_VERBS
  // What one rail lacks, the connection would have to do without.
  static rdma_traits able_traits(world& place) {
    rdma_traits traits = rdma(place).traits();
    traits.has_atomics = true;
    traits.one_answer_lost_in = 0;  // a rail is given up before its device has tried again
    traits.loses_empty_packets = false;
    traits.most_entries = std::max(traits.most_entries, 200);  // a first rail has requests and receives of its own
    if (traits.windows != net::verbs::window_kind::type_2a) traits.windows = net::verbs::window_kind::type_2b;
    return traits;
  }
  static std::unique_ptr<net::transport> open_rdma(rdma& device, const net::device_options& options) {
    return net::verbs::open_transport(rdma::device_name, device, options.verbs);
  }
  void inflict_on(rdma& device, std::uint16_t cable, const fault& one) {
    switch (one.what) {
      case fault_kind::reset:
        return device.break_off_cable(cable);
      case fault_kind::cut:
        return cut(device, cable, one);
      case fault_kind::stall:
        return device.stall_cable(cable, std::chrono::microseconds(one.lasts_us));
      case fault_kind::client_send_fails:
        return device.fail_post_on_cable(cable, true);
      case fault_kind::server_send_fails:
        return device.fail_post_on_cable(cable, false);
      case fault_kind::damage:
        return device.take_cable_out(stall_time);
    }
  }
  [[nodiscard]] bool has_rdma() const noexcept {
    return std::any_of(devices_.begin(), devices_.end(), [](const auto& each) { return each != nullptr; });
  }
  std::vector<std::unique_ptr<rdma>> devices_;  // null: a rail over TCP
#else
  [[nodiscard]] static std::unique_ptr<net::transport> open_rdma(int, const net::device_options&) { return nullptr; }
  [[nodiscard]] static bool has_rdma() noexcept { return false; }
  std::vector<std::unique_ptr<int>> devices_;
#endif

  world& place_;
  std::vector<std::weak_ptr<net::software::domain>> homes_;
};

}  // namespace

std::unique_ptr<medium> make_medium(const setting& where, world& place, const script& what) {
  switch (where.where) {
    case fabric::simulated:
      return std::make_unique<simulated_tcp>(place);
    case fabric::real:
      if (where.device == "iwarp") return std::make_unique<tcp>(system_calls::kernel());
      return std::make_unique<real_rdma>(where.device);
    case fabric::simulated_memory:
      return std::make_unique<simulated_memory>(place);
    case fabric::simulated_rails:
      return std::make_unique<simulated_rails>(place, what);
    case fabric::simulated_rdma:
      break;
  }
#ifdef WEFT_WITH_VERBS
  return std::make_unique<simulated_rdma>(place);
#else
  throw error(errc::not_supported, "the transport verbs, which is not in this build");
#endif
}

}  // namespace weft::sim
