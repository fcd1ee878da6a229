//! The two Services: one for clients, one that gives every pod a name.

use super::metadata;
use crate::names;
use crate::target::Target;
use crate::validate::Settled;
use berth_crds::connector::{ExternalTrafficPolicy, IpFamilyPolicy, ServiceType, SessionAffinity};
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// Every pod's name in DNS. Peers find each other while they start, so pods that are not ready are listed
/// too.
pub(super) fn headless(target: &Target, settled: &Settled) -> Service {
    let mut ports = client_ports(settled);
    ports.push(port(names::ADMIN_PORT_NAME, names::ADMIN_PORT));
    Service {
        metadata: metadata(target, names::headless_service(&target.name), "peers"),
        spec: Some(ServiceSpec {
            type_: Some("ClusterIP".to_owned()),
            cluster_ip: Some("None".to_owned()),
            publish_not_ready_addresses: Some(true),
            selector: Some(names::selector_labels(target.kind, &target.name)),
            ports: Some(ports),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

/// Where clients connect. All connections of a client stay on one pod, unless told otherwise.
pub(super) fn client(target: &Target, settled: &Settled) -> Service {
    let asked = target.spec.service.clone().unwrap_or_default();
    let mut metadata = metadata(target, target.name.clone(), "connector");
    metadata.annotations = asked.annotations.filter(|all| !all.is_empty());
    let affinity = asked.session_affinity.unwrap_or(SessionAffinity::ClientIP);
    Service {
        metadata,
        spec: Some(ServiceSpec {
            type_: Some(asked.type_.unwrap_or(ServiceType::ClusterIP).as_str().to_owned()),
            selector: Some(names::selector_labels(target.kind, &target.name)),
            ports: Some(client_ports(settled)),
            session_affinity: Some(affinity.as_str().to_owned()),
            ip_family_policy: asked.ip_family_policy.map(IpFamilyPolicy::as_str).map(str::to_owned),
            external_traffic_policy: asked
                .external_traffic_policy
                .map(ExternalTrafficPolicy::as_str)
                .map(str::to_owned),
            load_balancer_source_ranges: asked.load_balancer_source_ranges,
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

fn client_ports(settled: &Settled) -> Vec<ServicePort> {
    settled.ports.iter().map(|client| port(client.protocol, client.number)).collect()
}

fn port(name: &str, number: i32) -> ServicePort {
    ServicePort {
        name: Some(name.to_owned()),
        port: number,
        protocol: Some("TCP".to_owned()),
        target_port: Some(IntOrString::String(name.to_owned())),
        ..ServicePort::default()
    }
}
