package engine

import "testing"

func TestRelease(t *testing.T) {
	for _, test := range []struct {
		version, api string
		want         int
		text         string
	}{
		{"29.0.0-rc.1", "1.51", 29, "29.0.0-rc.1"},
		{"29.0.0-beta.24", "1.51", 29, "29.0.0-beta.24"},
		{"v28.5.2", "1.51", 28, "v28.5.2"},
		{"20.10.24+dfsg1", "1.41", 20, "20.10.24+dfsg1"},
		{"29.1.0", "1.24", 29, "29.1.0"}, // behind a proxy that speaks an old API
		{"1.12.2-cs2-ws-beta", "1.24", 1, "1.12.2-cs2-ws-beta"},
		{"17.06.2-ee-6", "1.30", 17, "17.06.2-ee-6"},
		{"27.5.1", "1.47", 27, "27.5.1"},
		// For these, only the API version is meaningful.
		{"dev", "1.51", 28, "28.0 (dev, API 1.51)"},
		{"library-import", "1.56", 29, "29.0 (library-import, API 1.56)"},
		{"0.0.0-20260101", "1.47", 27, "27.0 (0.0.0-20260101, API 1.47)"},
		{"2026.01-custom", "1.41", 20, "20.0 (2026.01-custom, API 1.41)"},
		{"", "1.48", 28, "28.0 (, API 1.48)"},
		{"master", "", 0, "master"},
		{"dev", "2.0", 0, "dev"},
		{"dev", "odd", 0, "dev"},
	} {
		i := Info{Version: test.version, APIVersion: test.api}
		if i.Release() != test.want || i.ReleaseVersion() != test.text {
			t.Errorf("version %q, API %q: release %d, %q, want %d, %q", test.version, test.api, i.Release(), i.ReleaseVersion(), test.want, test.text)
		}
	}
}
