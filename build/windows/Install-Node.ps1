<#
.SYNOPSIS
Makes this Windows Server a node of a Kubernetes cluster: copies kubelet.exe and proxy.exe, installs both as services and starts them.

.DESCRIPTION
Downloads nothing. Run it again at any time: it changes only what differs, and newer programs replace older ones while pods keep running.
It prints everything that it changes, and Remove-Node.ps1 undoes it.

.EXAMPLE
.\Install-Node.ps1 -Kubeconfig .\kubelet.conf -ProxyKubeconfig .\proxy.conf -ClusterCIDR 10.244.0.0/16 -ClusterDNS 10.96.0.10

.EXAMPLE
.\Install-Node.ps1 -Upgrade
Replaces the services' programs with those beside this script. -Rollback restores the previous ones. Pods keep running.
#>
[CmdletBinding(DefaultParameterSetName = 'Install')]
param(
    [Parameter(Mandatory = $true, ParameterSetName = 'Install')] [string] $Kubeconfig,
    [Parameter(Mandatory = $true, ParameterSetName = 'Upgrade')] [switch] $Upgrade,
    [Parameter(Mandatory = $true, ParameterSetName = 'Rollback')] [switch] $Rollback,
    [string] $ProxyKubeconfig = $Kubeconfig,
    [string] $ClusterCIDR = '10.244.0.0/16',
    [string] $ClusterDNS = '10.96.0.10',
    [string] $ClusterDomain = 'cluster.local',
    [string] $NodeIP = '',
    [string] $NodeName = '',
    [string] $ClientCA = '',
    [string] $Programs = $PSScriptRoot,
    [string] $Target = 'C:\k',
    [string] $DataRoot = 'C:\var\lib\kubelet',
    [string[]] $KubeletFlags = @(),
    [string[]] $ProxyFlags = @(),
    [switch] $NoFirewall,
    [switch] $NoDefender
)
$ErrorActionPreference = 'Stop'
Set-StrictMode -Version 2

function Invoke-Program([string] $Program, [string[]] $Arguments) {
    & $Program @Arguments
    if ($LASTEXITCODE -ne 0) {
        throw "$Program $($Arguments[0]) $($Arguments[1]) ended with code $LASTEXITCODE"
    }
}

function Copy-Program([string] $Name) {
    $from = Join-Path $Programs $Name
    $to = Join-Path $Target $Name
    if (-not (Test-Path $from)) {
        throw "$from is not there: -Programs names the directory of kubelet.exe and proxy.exe"
    }
    if ((Test-Path $to) -and ((Get-FileHash $from).Hash -eq (Get-FileHash $to).Hash)) {
        return
    }
    if (Test-Path $to) {
        # A running program can be renamed, not replaced. The old one stays, for a roll-back.
        Remove-Item "$to.old" -ErrorAction SilentlyContinue
        Rename-Item $to "$Name.old"
    }
    Copy-Item $from $to
    Write-Host "copied $to"
}

$principal = New-Object Security.Principal.WindowsPrincipal([Security.Principal.WindowsIdentity]::GetCurrent())
if (-not $principal.IsInRole([Security.Principal.WindowsBuiltInRole]::Administrator)) {
    throw 'This takes an administrator''s rights: open PowerShell by "Run as administrator".'
}
$kubelet = Join-Path $Target 'kubelet.exe'
$proxy = Join-Path $Target 'proxy.exe'
if ($Upgrade) {
    $newKubelet = Join-Path $Programs 'kubelet.exe'
    $newProxy = Join-Path $Programs 'proxy.exe'
    Invoke-Program $newKubelet @('service', 'upgrade')
    Invoke-Program $newProxy @('service', 'upgrade')
    return
}
if ($Rollback) {
    Invoke-Program $kubelet @('service', 'rollback')
    Invoke-Program $proxy @('service', 'rollback')
    return
}
foreach ($name in 'docker', 'hns') {
    $service = Get-Service $name -ErrorAction SilentlyContinue
    if ($null -eq $service) {
        throw "There is no service ${name}: install the feature Containers (Install-WindowsFeature Containers; Restart-Computer) and Docker first."
    }
    if ($service.Status -ne 'Running') {
        Start-Service $name
        Write-Host "started the service $name"
    }
}

New-Item -ItemType Directory -Force $Target, $DataRoot | Out-Null
foreach ($name in 'kubelet.exe', 'proxy.exe') {
    Copy-Program $name
}
$nodeConfig = Join-Path $Target 'kubelet.conf'
$serviceConfig = Join-Path $Target 'proxy.conf'
Copy-Item $Kubeconfig $nodeConfig -Force
Copy-Item $ProxyKubeconfig $serviceConfig -Force
foreach ($secret in $nodeConfig, $serviceConfig) {
    # SYSTEM and Administrators by their SIDs, whose names differ by language.
    & icacls.exe $secret /inheritance:r /grant '*S-1-5-18:F' '*S-1-5-32-544:F' | Out-Null
}

if ((-not $NoDefender) -and (Get-Command Add-MpPreference -ErrorAction SilentlyContinue)) {
    Add-MpPreference -ExclusionPath $DataRoot
    Write-Host "Defender: $DataRoot is not scanned; undo: Remove-MpPreference -ExclusionPath '$DataRoot'"
}

$flags = @("--kubeconfig=$nodeConfig", "--root-dir=$DataRoot", "--cluster-cidr=$ClusterCIDR", "--cluster-dns=$ClusterDNS", "--cluster-domain=$ClusterDomain")
$serviceFlags = @("--kubeconfig=$serviceConfig", "--cluster-cidr=$ClusterCIDR")
if ($NoFirewall) {
    # The programs own their rules, and remove them when this flag is set.
    $flags += '--windows-firewall=false'
    $serviceFlags += '--windows-firewall=false'
} else {
    Write-Host 'firewall: kubelet.exe and proxy.exe open what they listen on (rules "winkube ..."); undo: -NoFirewall'
}
if ($NodeIP -ne '') {
    $flags += "--node-ip=$NodeIP"
    $serviceFlags += "--bind-address=$NodeIP"
}
if ($NodeName -ne '') {
    $flags += "--hostname-override=$NodeName"
    $serviceFlags += "--hostname-override=$NodeName"
}
if ($ClientCA -ne '') {
    $authority = Join-Path $Target 'ca.crt'
    Copy-Item $ClientCA $authority -Force
    $flags += "--client-ca-file=$authority"
}
Invoke-Program $kubelet (@('service', 'install') + $flags + $KubeletFlags)
Invoke-Program $proxy (@('service', 'install') + $serviceFlags + $ProxyFlags)
foreach ($program in $kubelet, $proxy) {
    # Make the changes take effect; pods keep running meanwhile.
    & $program service stop
    Invoke-Program $program @('service', 'start')
    Invoke-Program $program @('service', 'status')
}
