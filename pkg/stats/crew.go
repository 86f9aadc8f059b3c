package stats

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/winkube/winkube/pkg/disk"
)

// Progress of disk measurements. Upstream has no such metrics.
var (
	diskRunning = prometheus.NewDesc("winkube_disk_measurements_running", "Measurements of files, file systems and volumes in progress", nil, nil)
	diskHung    = prometheus.NewDesc("winkube_disk_measurements_hung", "Measurements of files, file systems and volumes that hang", nil, nil)
	diskLate    = prometheus.NewDesc("winkube_disk_measurements_late_total", "Measurements of files, file systems and volumes that did not end in time", nil, nil)
	diskUnread  = prometheus.NewDesc("winkube_disk_unreadable_files", "Files that the last measurement could not read", nil, nil)
)

// Crew is a prometheus.Collector of the progress of disk measurements.
type Crew func() disk.State

// Describe implements prometheus.Collector.
func (Crew) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{diskRunning, diskHung, diskLate, diskUnread} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c Crew) Collect(out chan<- prometheus.Metric) {
	s := c()
	out <- prometheus.MustNewConstMetric(diskRunning, prometheus.GaugeValue, float64(s.Running))
	out <- prometheus.MustNewConstMetric(diskHung, prometheus.GaugeValue, float64(s.Hung))
	out <- prometheus.MustNewConstMetric(diskLate, prometheus.CounterValue, float64(s.Late))
	out <- prometheus.MustNewConstMetric(diskUnread, prometheus.GaugeValue, float64(s.Unread))
}
