package main

import (
	"cmp"
	"slices"
	"time"
)

// A report is what one run found out, as it is printed.
type report struct {
	Backend   string `json:"backend"`
	Variant   string `json:"variant,omitempty"`
	Services  int    `json:"services"`
	Endpoints int    `json:"endpoints"`

	SyncSeconds    float64 `json:"sync_seconds"`
	SyncCPUSeconds float64 `json:"sync_cpu_seconds"`
	FloorSeconds   float64 `json:"floor_seconds"`

	ApplyMicroseconds       float64 `json:"apply_microseconds"`
	ApplyFloorMicroseconds  float64 `json:"apply_floor_microseconds"`
	RemoveMicroseconds      float64 `json:"remove_microseconds"`
	RemoveFloorMicroseconds float64 `json:"remove_floor_microseconds"`

	RestartSeconds float64 `json:"restart_seconds"`
	CleanupSeconds float64 `json:"cleanup_seconds"`
	PeakRSSBytes   int     `json:"peak_rss_bytes"`
	Objects        int     `json:"objects"`

	*connectReport
	*ruleReport
	*churnReport
	*peerReport

	// floorCPUSeconds is the CPU time of the floor, removeTransactions the most that one removal took: -check tells them.
	floorCPUSeconds    float64
	removeTransactions int
}

// A connectReport is what -connect adds.
type connectReport struct {
	DirectP50Microseconds float64 `json:"direct_p50_microseconds"`
	VIPP50Microseconds    float64 `json:"vip_p50_microseconds"`
	DirectP99Microseconds float64 `json:"direct_p99_microseconds"`
	VIPP99Microseconds    float64 `json:"vip_p99_microseconds"`
	ConnectRatio          float64 `json:"connect_ratio"`
}

// A ruleReport is what a backend adds whose rules a packet passes one after the other.
type ruleReport struct {
	RulesPassed        int     `json:"rules_passed"`
	NoopRestoreSeconds float64 `json:"noop_restore_seconds"`
}

// A peerReport is what a backend adds that has others to compare with.
type peerReport struct {
	PeerSyncSeconds float64 `json:"peer_sync_seconds"`
	RestoreSeconds  float64 `json:"restore_seconds"`
}

// quantile returns the value below which the fraction q of the values lies, 0 if there are none.
func quantile[T cmp.Ordered](values []T, q float64) T {
	if len(values) == 0 {
		var zero T
		return zero
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// median returns the middle of the values, the upper of two.
func median[T cmp.Ordered](values []T) T { return quantile(values, 0.5) }

// microseconds returns the duration to the tenth of a microsecond.
func microseconds(d time.Duration) float64 { return float64(d.Round(100*time.Nanosecond)) / 1e3 }

// seconds returns the duration to the tenth of a millisecond.
func seconds(d time.Duration) float64 { return d.Round(100 * time.Microsecond).Seconds() }
