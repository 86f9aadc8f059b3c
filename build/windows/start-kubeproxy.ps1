<#
.SYNOPSIS
Runs the proxy in this window, as the script of Kubernetes 1.9 did. Install-Node.ps1 installs it as a service instead.

.DESCRIPTION
That script waited for an HNS network and named it in KUBE_NETWORK; proxy.exe needs neither, unless -Kernelspace asks for HNS' load balancers.
#>
[CmdletBinding()]
param(
    [string] $Kubeconfig = 'C:\k\config',
    [string] $ClusterCIDR = '10.244.0.0/16',
    [string] $NetworkName = '',
    [switch] $Kernelspace,
    [string[]] $Flags = @()
)
$ErrorActionPreference = 'Stop'
Set-StrictMode -Version 2

$arguments = @("--kubeconfig=$Kubeconfig", "--cluster-cidr=$ClusterCIDR")
if ($Kernelspace) {
    $arguments += @('--proxy-mode=kernelspace', "--network-name=$NetworkName")
}
& (Join-Path $PSScriptRoot 'proxy.exe') @arguments @Flags
exit $LASTEXITCODE
