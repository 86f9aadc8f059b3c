package lab

import "testing"

func TestGatewayAddresses(t *testing.T) {
	if got := gatewayAddresses(""); len(got) < 2 || got[0] != "127.0.0.1:16443" || got[1] != "127.0.0.1:16444" {
		t.Errorf("the first gateway: %q", got)
	}
	if got := gatewayAddresses("https://127.0.0.1:16450"); len(got) < 2 || got[0] != "127.0.0.1:16450" || got[1] != "127.0.0.1:16443" {
		t.Errorf("after a restart: %q", got)
	}
}
