package podspec

import (
	"math"
	"time"
)

// Seconds is n seconds, limited to 68 years in both directions. The API accepts any number, and a large one would overflow when multiplied
// or added to the current time.
func Seconds(n int64) time.Duration {
	return time.Duration(min(max(n, -math.MaxInt32), math.MaxInt32)) * time.Second
}
