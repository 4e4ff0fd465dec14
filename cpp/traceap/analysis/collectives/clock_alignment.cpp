#include "traceap/analysis/collectives/clock_alignment.hpp"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>

#include "traceap/base/intervals.hpp"
#include "traceap/base/statistics.hpp"

namespace traceap {
namespace {

/// On one host the ends of a collective differ by some microseconds, and always in the same order:
/// a ring hands its last part on from rank to rank, and each GPU's clock is read with an error. (7
/// us on one public set of eight V100, 18 us on another of four.) Readings don't average that away.
constexpr std::int64_t kEndSkewNs = 20'000;
/// An offset that its readings scatter around this widely is not shown by them.
constexpr std::int64_t kResidualFactor = 3;
/// One or two moments can't show that one of them was matched wrongly.
constexpr std::int64_t kFewReadingsNs = 1'000'000;
constexpr std::uint32_t kFewReadings = 3;
/// A crystal drifts by some 1e-6 to 1e-5: 10 us in one second or more.
constexpr std::uint32_t kDriftReadings = 20;
constexpr std::int64_t kDriftSpanNs = 1'000'000'000;
/// Work bound: readings squared per moment, summed.
constexpr std::size_t kMaxWork = 1'000'000;
/// Work bound of the fits: unknowns to the third power, summed over rounds. All rounds for a
/// thousand clocks; beyond 3,500 the medians that a fit begins with are what there is.
constexpr double kMostFitting = 4.3e10;

struct Moment {
  std::size_t begin, end;  ///< in readings
};

/// Moments with several readings, thinned out evenly if there are too many.
std::vector<Moment> list_moments(const std::vector<ClockReading>& readings) {
  std::vector<Moment> moments;
  std::size_t work = 0;
  for (std::size_t i = 0; i < readings.size();) {
    std::size_t j = i;
    while (j < readings.size() && readings[j].moment == readings[i].moment) ++j;
    if (j - i > 1) {
      moments.push_back({i, j});
      work += (j - i) * (j - i);
    }
    i = j;
  }
  const std::size_t stride = work / kMaxWork + 1;
  if (stride == 1) return moments;
  std::vector<Moment> thinned;
  for (std::size_t i = 0; i < moments.size(); i += stride) thinned.push_back(moments[i]);
  return thinned;
}

std::vector<std::uint32_t> find_components(const std::vector<ClockReading>& readings,
                                           const std::vector<Moment>& moments, std::size_t clocks) {
  std::vector<std::uint32_t> parent(clocks);
  std::iota(parent.begin(), parent.end(), 0U);
  const auto root = [&](std::uint32_t x) {
    while (parent[x] != x) x = parent[x] = parent[parent[x]];
    return x;
  };
  for (const Moment& moment : moments) {
    for (std::size_t i = moment.begin + 1; i < moment.end; ++i) {
      const std::uint32_t a = root(readings[moment.begin].clock), b = root(readings[i].clock);
      parent[std::max(a, b)] = std::min(a, b);  // the root is the component's first clock
    }
  }
  for (std::uint32_t c = 0; c < clocks; ++c) parent[c] = root(c);
  return parent;
}

/// Offsets (and slopes) of all clocks at once; per clock `terms` unknowns.
class LeastAbsoluteDeviations {
 public:
  LeastAbsoluteDeviations(const std::vector<ClockReading>& readings,
                          const std::vector<Moment>& moments,
                          const std::vector<std::uint32_t>& component)
      : readings_(readings), moments_(moments), component_(component) {
    base_.resize(component.size(), 0);
    set_start();
  }

  /// One unknown per clock; refined from the median differences of set_start.
  void fit(int terms, std::int64_t epoch_ns) {
    terms_ = terms;
    epoch_ns_ = epoch_ns;
    const auto unknowns = static_cast<Eigen::Index>(component_.size()) * terms;
    solution_ = Eigen::VectorXd::Zero(unknowns);
    constexpr double kRounds = 40.0;
    const auto n = static_cast<double>(unknowns);
    const int rounds = static_cast<int>(std::min(kRounds, kMostFitting / (n * n * n)));
    for (int round = 0; round < rounds; ++round) {
      const Eigen::VectorXd before = solution_;
      solve_weighted(round == 0);
      if ((solution_ - before).cwiseAbs().maxCoeff() < 1.0) break;
    }
  }

  double offset(std::size_t clock) const {
    return static_cast<double>(base_[clock]) + solution_[index(clock)];
  }
  double slope(std::size_t clock) const {
    return terms_ == 2 ? solution_[index(clock) + 1] / kSecond : 0.0;
  }

  /// Distance of each reading, corrected by the fit, from the median of the moment's others.
  std::vector<std::vector<std::int64_t>> residuals() const {
    std::vector<std::vector<std::int64_t>> by_clock(component_.size());
    std::vector<double> sorted;
    for (const Moment& moment : moments_) {
      sorted.clear();
      for (std::size_t i = moment.begin; i < moment.end; ++i) sorted.push_back(y(i));
      std::sort(sorted.begin(), sorted.end());
      for (std::size_t i = moment.begin; i < moment.end; ++i) {
        const double own = y(i);
        by_clock[readings_[i].clock].push_back(std::llround(std::abs(own - others(sorted, own))));
      }
    }
    return by_clock;
  }

 private:
  static constexpr double kSecond = 1e9;

  /// Median of sorted values without one that equals `own`.
  static double others(const std::vector<double>& sorted, double own) {
    const auto at = static_cast<std::size_t>(std::lower_bound(sorted.begin(), sorted.end(), own) -
                                             sorted.begin());
    const auto value = [&](std::size_t k) { return sorted[k < at ? k : k + 1]; };
    const std::size_t n = sorted.size() - 1;
    return 0.5 * (value((n - 1) / 2) + value(n / 2));
  }

  Eigen::Index index(std::size_t clock) const { return static_cast<Eigen::Index>(clock) * terms_; }
  double tau(std::size_t i) const {
    return static_cast<double>(readings_[i].time_ns - base_[readings_[i].clock] - epoch_ns_) /
           kSecond;
  }
  /// A reading without its clock's offset, small enough for a double.
  double y(std::size_t i) const {
    const std::size_t clock = readings_[i].clock;
    double value = static_cast<double>(readings_[i].time_ns - base_[clock] - epoch_ns_) -
                   solution_[index(clock)];
    if (terms_ == 2) value -= solution_[index(clock) + 1] * tau(i);
    return value;
  }

  /// Rough offsets by a walk through moments: clocks may differ by hours, which doubles would blur.
  void set_start() {
    std::vector<bool> known(component_.size(), false);
    for (std::size_t c = 0; c < component_.size(); ++c) known[c] = component_[c] == c;
    for (bool changed = true; changed;) {
      changed = false;
      std::vector<std::vector<std::int64_t>> differences(component_.size());
      for (const Moment& moment : moments_) collect_differences(moment, known, differences);
      for (std::size_t c = 0; c < component_.size(); ++c) {
        if (known[c] || differences[c].empty()) continue;
        base_[c] = median_of(differences[c]);
        known[c] = changed = true;
      }
    }
  }

  void collect_differences(const Moment& moment, const std::vector<bool>& known,
                           std::vector<std::vector<std::int64_t>>& differences) const {
    std::vector<std::int64_t> times;
    for (std::size_t i = moment.begin; i < moment.end; ++i) {
      const std::uint32_t clock = readings_[i].clock;
      if (known[clock]) times.push_back(readings_[i].time_ns - base_[clock]);
    }
    if (times.empty()) return;
    const std::int64_t middle = median_of(times);
    for (std::size_t i = moment.begin; i < moment.end; ++i) {
      const std::uint32_t clock = readings_[i].clock;
      if (!known[clock]) differences[clock].push_back(readings_[i].time_ns - middle);
    }
  }

  /// One round: weights 1 / |residual|, moments eliminated, first clock of a component held at 0.
  void solve_weighted(bool equal_weights) {
    constexpr double kFloorNs = 100.0;  // below it a residual counts as none
    const Eigen::Index n = solution_.size();
    Eigen::MatrixXd a = Eigen::MatrixXd::Zero(n, n);
    Eigen::VectorXd b = Eigen::VectorXd::Zero(n);
    std::vector<double> weight, target;
    for (const Moment& moment : moments_) {
      weight.clear();
      target.clear();
      fill_moment(moment, equal_weights, kFloorNs, weight, target);
      add_moment(moment, weight, target, a, b);
    }
    for (std::size_t c = 0; c < component_.size(); ++c) {
      for (int t = 0; t < terms_; ++t) {
        const Eigen::Index k = index(c) + t;
        if (component_[c] == c) {
          a.row(k).setZero();
          a.col(k).setZero();
          b[k] = 0.0;
          a(k, k) = 1.0;
        } else if (a(k, k) <= 0.0) {
          a(k, k) = 1.0;
        }
      }
    }
    a.diagonal().array() += 1e-12 * std::max(1.0, a.diagonal().maxCoeff());
    solution_ = a.ldlt().solve(b);
  }

  void fill_moment(const Moment& moment, bool equal_weights, double floor_ns,
                   std::vector<double>& weight, std::vector<double>& target) const {
    std::vector<double> values;
    for (std::size_t i = moment.begin; i < moment.end; ++i) {
      values.push_back(y(i));
      target.push_back(
          static_cast<double>(readings_[i].time_ns - base_[readings_[i].clock] - epoch_ns_));
    }
    std::vector<double> sorted = values;
    std::nth_element(sorted.begin(),
                     sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2), sorted.end());
    double middle = sorted[sorted.size() / 2];
    if (sorted.size() == 2) middle = 0.5 * (values[0] + values[1]);
    for (double value : values) {
      weight.push_back(equal_weights ? 1.0 : 1.0 / std::max(floor_ns, std::abs(value - middle)));
    }
  }

  /// Adds w (x - mean x)(x - mean x)^T, with x the row of the design matrix of each reading.
  void add_moment(const Moment& moment, const std::vector<double>& weight,
                  const std::vector<double>& target, Eigen::MatrixXd& a, Eigen::VectorXd& b) const {
    const double sum = std::accumulate(weight.begin(), weight.end(), 0.0);
    double mean = 0.0;
    for (std::size_t i = 0; i < weight.size(); ++i) mean += weight[i] * target[i] / sum;
    for (std::size_t i = 0; i < weight.size(); ++i) {
      const std::size_t row_i = moment.begin + i;
      for (int t = 0; t < terms_; ++t) {
        const double x = t == 0 ? 1.0 : tau(row_i);
        const Eigen::Index k = index(readings_[row_i].clock) + t;
        b[k] += weight[i] * x * (target[i] - mean);
        for (std::size_t j = 0; j < weight.size(); ++j) {
          const std::size_t row_j = moment.begin + j;
          const double factor = (i == j ? weight[i] : 0.0) - weight[i] * weight[j] / sum;
          for (int u = 0; u < terms_; ++u) {
            const double z = u == 0 ? 1.0 : tau(row_j);
            a(k, index(readings_[row_j].clock) + u) += factor * x * z;
          }
        }
      }
    }
  }

  const std::vector<ClockReading>& readings_;
  const std::vector<Moment>& moments_;
  const std::vector<std::uint32_t>& component_;
  std::vector<std::int64_t> base_;
  int terms_ = 1;
  std::int64_t epoch_ns_ = 0;
  Eigen::VectorXd solution_;
};

std::int64_t uncertainty_of(std::int64_t residual_ns, std::uint32_t readings) {
  const std::int64_t floor_ns = readings < kFewReadings ? kFewReadingsNs : kEndSkewNs;
  return std::max(floor_ns, kResidualFactor * residual_ns);
}

/// Does any clock have enough readings over enough time for a drift?
bool may_drift(const std::vector<ClockReading>& readings, std::size_t clocks) {
  std::vector<std::uint32_t> count(clocks, 0);
  std::vector<std::int64_t> first(clocks, std::numeric_limits<std::int64_t>::max());
  std::vector<std::int64_t> last(clocks, std::numeric_limits<std::int64_t>::min());
  for (const ClockReading& r : readings) {
    ++count[r.clock];
    first[r.clock] = std::min(first[r.clock], r.time_ns);
    last[r.clock] = std::max(last[r.clock], r.time_ns);
  }
  for (std::size_t c = 0; c < clocks; ++c) {
    if (count[c] >= kDriftReadings && last[c] - first[c] >= kDriftSpanNs) return true;
  }
  return false;
}

}  // namespace

std::int64_t ClockAlignment::to_common(std::uint32_t clock, std::int64_t time_ns) const {
  const ClockFit& fit = clocks[clock];
  if (!fit.applied) return time_ns;
  const std::int64_t moved = time_ns - fit.offset_ns;
  return moved - std::llround(fit.drift * static_cast<double>(moved - epoch_ns));
}

ClockAlignment align_clocks(const std::vector<ClockReading>& readings, std::size_t clocks) {
  ClockAlignment alignment;
  alignment.clocks.resize(clocks);
  const std::vector<Moment> moments = list_moments(readings);
  const std::vector<std::uint32_t> component = find_components(readings, moments, clocks);
  for (std::size_t c = 0; c < clocks; ++c) alignment.clocks[c].component = component[c];
  if (moments.empty()) return alignment;

  std::vector<std::int64_t> times;
  for (const ClockReading& r : readings) {
    if (component[r.clock] == r.clock) times.push_back(r.time_ns);
  }
  alignment.epoch_ns = median_of(times);
  LeastAbsoluteDeviations solver(readings, moments, component);
  solver.fit(1, alignment.epoch_ns);
  auto residuals = solver.residuals();
  const bool drifts = may_drift(readings, clocks);
  std::vector<double> offsets(clocks);
  for (std::size_t c = 0; c < clocks; ++c) offsets[c] = solver.offset(c);
  std::vector<std::vector<std::int64_t>> drift_residuals;
  if (drifts) {
    solver.fit(2, alignment.epoch_ns);
    drift_residuals = solver.residuals();
  }
  for (std::size_t c = 0; c < clocks; ++c) {
    ClockFit& fit = alignment.clocks[c];
    fit.readings = static_cast<std::uint32_t>(residuals[c].size());
    if (fit.readings == 0) continue;
    fit.residual_ns = median_of(residuals[c]);
    fit.offset_ns = std::llround(offsets[c]);
    if (drifts && fit.readings >= kDriftReadings) {
      // A drift has to explain half of what the offset alone leaves over.
      const std::int64_t left = median_of(drift_residuals[c]);
      if (fit.residual_ns > kEndSkewNs && 2 * left < fit.residual_ns) {
        fit.residual_ns = left;
        fit.offset_ns = std::llround(solver.offset(c));
        fit.drift = solver.slope(c);
      }
    }
    fit.uncertainty_ns = uncertainty_of(fit.residual_ns, fit.readings);
    // Clocks a lifetime apart are damaged times; shifted, they would not fit into 64 bits.
    const bool fits = fit.offset_ns >= -kMaxTimeNs && fit.offset_ns <= kMaxTimeNs;
    const bool differs = std::abs(fit.offset_ns) > fit.uncertainty_ns || fit.drift != 0.0;
    fit.applied = fits && differs;
  }
  return alignment;
}

}  // namespace traceap
