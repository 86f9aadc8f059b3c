package app

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/windows"

	"github.com/winkube/winkube/pkg/hcs"
	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/netsh"
	"github.com/winkube/winkube/pkg/record"
)

// simulated says whether this is Wine with our simulators.
func simulated() bool {
	return windows.NewLazySystemDLL("ntdll.dll").NewProc("wine_get_version").Find() == nil
}

// refuseSystem returns an error if HNS has networks of ours.
func (l *life) refuseSystem() error {
	for _, name := range []string{l.networkName(), recordName} {
		there, err := hns.Exists(name)
		if err != nil {
			return err
		}
		if there {
			return fmt.Errorf("this host is a node, or an earlier recording was killed: HNS has the network %q; drain the node and run `Get-HnsNetwork | ? Name -eq %[1]s | Remove-HnsNetwork`, or record another host", name)
		}
	}
	return nil
}

func (l *life) lookSystem(ctx context.Context) error {
	version, err := hns.Survey()
	l.rec.Describe(func(h *record.Header) { h.HNS = version })
	_, rules := netsh.New(l.run).Script(ctx, []string{netsh.Dump})
	for _, table := range [][]string{{"dynamicport", "tcp"}, {"dynamicport", "udp"}, {"excludedportrange", "protocol=tcp"}} { // any answer of netsh is worth recording
		_, _ = l.run.Run(ctx, nil, "netsh", append([]string{"interface", "ipv4", "show"}, table...)...)
	}
	return errors.Join(err, rules)
}

func (l *life) forgetNetwork(name string) error { return hns.Forget(name) }

// measure reads a container's statistics from HCS, as /stats does.
func (*life) measure(id string) error {
	_, err := hcs.Measure(id)
	return err
}

// services are the steps for Services.
type services struct{ *life }

// systemSteps are the steps for Services: addresses, load balancers, port proxy and firewall rules.
func (l *life) systemSteps() []record.Step {
	s := services{l}
	steps := []record.Step{
		{Name: "service address", What: fmt.Sprintf("makes a switch %s without an uplink, whose adapter gets the address %s", recordName, recordServices[0]), Do: s.addAddress, Undo: s.removeAddress},
		{Name: "port proxy", What: fmt.Sprintf("makes a port proxy rule from %s:80 to %s:80, addresses that no one has", recordServices[1], recordServices[0]), Do: s.addRule, Undo: s.removeRule},
		{Name: "firewall", What: fmt.Sprintf("makes a rule %q of Windows Firewall for this program", recordName), Do: s.allow, Undo: s.disallow},
	}
	if l.cfg.Platform.Build >= 17763 {
		steps = append(steps, record.Step{Name: "load balancer", What: fmt.Sprintf("makes a load balancer in HNS from %s:80 to the container", recordServices[1]), Do: s.balance,
			Undo: s.unbalance, Needs: []string{"network", "container"}})
	}
	return steps
}

// recordAdapters are the names that the switch's adapter may have.
var recordAdapters = []string{"vEthernet (" + recordName + ")", "vEthernet (HNS Internal NIC)"}

// adapterTime is how long Windows may take to create the adapter of a new switch.
const adapterTime = 30 * time.Second

func (services) addAddress(ctx context.Context) error {
	if err := hns.MakeInternal(recordName); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, adapterTime)
	defer cancel()
	again := time.NewTicker(time.Second)
	defer again.Stop()
	for {
		if found, err := record.Hold(recordAdapters, recordServices[0], true); found {
			return err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return fmt.Errorf("the switch %s has no adapter %q after %s", recordName, recordAdapters, adapterTime)
		}
	}
}

func (services) removeAddress(context.Context) error {
	_, err := record.Hold(recordAdapters, recordServices[0], false)
	return errors.Join(err, hns.RemoveInternal(recordName))
}

// recordRule connects two addresses that do not answer.
var recordRule = netsh.Rule{Listen: netip.AddrPortFrom(recordServices[1], 80), Connect: netip.AddrPortFrom(recordServices[0], 80)}

// rules runs a netsh line and says whether the rule exists afterwards.
func (l services) rules(ctx context.Context, line string) (there bool, err error) {
	output, failed := netsh.New(l.run).Script(ctx, []string{line, netsh.Dump})
	rules, err := netsh.ParseDump(output)
	if err != nil {
		return false, errors.Join(failed, err)
	}
	return slices.ContainsFunc(rules, func(r netsh.Rule) bool { return r.Listen == recordRule.Listen }), nil
}

func (l services) addRule(ctx context.Context) error {
	there, err := l.rules(ctx, recordRule.Add())
	if err == nil && !there {
		err = errors.New("netsh did not make the port proxy rule")
	}
	return err
}

func (l services) removeRule(ctx context.Context) error {
	there, err := l.rules(ctx, recordRule.Delete())
	if err == nil && there {
		err = errors.New("netsh did not remove the port proxy rule")
	}
	return err
}

func (l services) allow(ctx context.Context) error {
	return netsh.New(l.run).AdmitSelf(ctx, recordName, true)
}

func (l services) disallow(ctx context.Context) error {
	return netsh.New(l.run).AdmitSelf(ctx, recordName, false)
}

// target returns the container's endpoint in HNS.
func (l services) target(ctx context.Context, client hns.Client) (id hns.ID, err error) {
	made, err := client.Network(ctx, l.networkName())
	if err != nil {
		return hns.ID{}, err
	}
	endpoints, err := client.Endpoints(ctx)
	if err != nil {
		return hns.ID{}, err
	}
	host := l.pods.Masked().Addr().Next().Next() // the gateway, an endpoint of the host
	for _, e := range endpoints {
		if e.Network == made.ID && len(e.Addrs) > 0 && l.pods.Contains(e.Addrs[0]) && e.Addrs[0] != host {
			return e.ID, nil
		}
	}
	return hns.ID{}, fmt.Errorf("HNS has no endpoint of the container in the network %s", made.Name)
}

// balance creates a load balancer to the container, as the proxy does in mode kernelspace, changes it and reads it back.
func (l services) balance(ctx context.Context) error {
	client := hns.NewClient()
	id, err := l.target(ctx, client)
	if err != nil {
		return err
	}
	lb := hns.LoadBalancer{VIP: recordServices[1], Protocol: 6, ExternalPort: 80, InternalPort: 80, Endpoints: []hns.ID{id}}
	if lb.ID, err = client.CreateLoadBalancer(ctx, lb); err != nil {
		return err
	}
	lb.InternalPort = 8080
	if _, err := client.ReplaceLoadBalancer(ctx, lb); err != nil {
		return err
	}
	_, err = client.LoadBalancers(ctx)
	return err
}

func (l services) unbalance(ctx context.Context) error {
	client := hns.NewClient()
	list, err := client.LoadBalancers(ctx)
	errs := []error{err}
	for _, lb := range list {
		if lb.VIP == recordServices[1] {
			errs = append(errs, client.DeleteLoadBalancer(ctx, lb.ID))
		}
	}
	return errors.Join(errs...)
}
